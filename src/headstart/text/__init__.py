"""Text outside, token ids inside: tokenizers, chat templates, grammars, text that grows token by token."""
