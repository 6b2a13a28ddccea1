"""The paged key-value cache: which block holds which tokens. The bytes belong to the backend."""
