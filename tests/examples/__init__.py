"""Every example, as a user would run it."""
