"""Training of drafters: text written by the target, losses, one objective for each kind, the trainer."""
