"""The dashboard for browsers."""
