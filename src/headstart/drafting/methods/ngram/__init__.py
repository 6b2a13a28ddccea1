"""The method ngram."""
