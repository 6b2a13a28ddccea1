"""Programs that measure one thing each."""
