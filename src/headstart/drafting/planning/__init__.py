"""The planner: which drafters to ask, what their guesses are worth, and how many to verify."""
