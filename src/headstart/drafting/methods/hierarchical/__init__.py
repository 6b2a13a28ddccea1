"""The method hierarchical."""
