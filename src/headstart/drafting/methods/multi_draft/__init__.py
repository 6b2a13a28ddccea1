"""The method multi_draft."""
