"""What a precision costs in perplexity, divergence and answers."""
