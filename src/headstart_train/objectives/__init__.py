"""What a head is taught by, an objective for each kind."""
