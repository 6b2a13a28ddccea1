"""What a model's answers say: text, thoughts and calls of functions, in the form of its family."""
