"""What drafters that run a trained head share."""
