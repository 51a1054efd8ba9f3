"""Hosts move to other machines while calls are made to their actors."""
