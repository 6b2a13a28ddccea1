"""What drafters that run a draft model share."""
