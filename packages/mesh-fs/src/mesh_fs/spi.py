"""What a new store for content-addressed chunks implements."""

__all__: list[str] = []
