"""The method rest."""
