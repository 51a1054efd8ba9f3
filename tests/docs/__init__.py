"""The documentation: its code runs, its links resolve, its commands exist."""
