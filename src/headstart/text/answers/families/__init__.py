"""How models write: a file for each family, which lists its forms of calls in ``CALLS`` and of thoughts in
``THOUGHTS``."""
