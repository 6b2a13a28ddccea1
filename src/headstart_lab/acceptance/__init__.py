"""How often guesses are accepted, and why."""
