"""What a new scheduler implements: the backend protocol."""

__all__: list[str] = []
