"""What is trained, at its first step: one file for each family of heads."""
