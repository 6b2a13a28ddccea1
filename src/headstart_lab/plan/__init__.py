"""What speculation would bring on this machine."""
