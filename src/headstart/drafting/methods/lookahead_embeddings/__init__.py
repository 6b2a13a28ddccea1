"""The method lookahead_embeddings."""
