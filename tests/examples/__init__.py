"""Every example, executed as by a user."""
