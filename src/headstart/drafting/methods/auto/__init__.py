"""The method auto."""
