"""The library's front doors: what users import and call."""
