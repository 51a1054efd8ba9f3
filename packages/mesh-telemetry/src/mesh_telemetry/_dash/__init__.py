"""The dashboard, for browsers."""
