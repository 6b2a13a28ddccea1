"""The methods of drafting, a folder each."""
