"""The lab page as files that need no server, and what it asks of the laboratory."""
