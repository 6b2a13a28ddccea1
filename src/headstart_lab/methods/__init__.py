"""Methods that others are compared with: floors, forerunners, guesses that are right at chosen rates. A folder each, as
in ``headstart.drafting.methods``; found by entry points of the group ``headstart.methods``."""
