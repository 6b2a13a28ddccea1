"""The method p_eagle."""
