"""Refreshing a mount when its directory changes."""
