"""Credentials, and limits for unauthenticated connections."""
