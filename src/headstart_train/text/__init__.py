"""Text that targets write, in shards."""
