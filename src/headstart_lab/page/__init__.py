"""The lab page: what a server adds at ``/``, and the same as files that need no server."""
