"""Searches the schedules of recorded actors for one that fails."""
