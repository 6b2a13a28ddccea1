"""Pictures and pages of measurements."""
