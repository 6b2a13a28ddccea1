"""The engine: sequences, the schedule, the round. Knows token ids, never text or method names."""
