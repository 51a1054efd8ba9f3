"""The first commands that a user types, run as printed in a new clone."""
