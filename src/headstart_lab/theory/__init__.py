"""The papers' algebra."""
