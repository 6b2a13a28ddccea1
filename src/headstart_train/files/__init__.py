"""What is written: heads, models and tokenizers, and heads of other programs read."""
