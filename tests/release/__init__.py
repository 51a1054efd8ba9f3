"""What a user does first with each published package."""
