"""Folders whose weights are quantised, one file for each scheme: every matrix is read as the values that it defines."""
