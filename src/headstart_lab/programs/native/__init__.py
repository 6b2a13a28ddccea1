"""Times of native passes."""
