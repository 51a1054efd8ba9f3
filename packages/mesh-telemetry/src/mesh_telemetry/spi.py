"""What a new source of rows implements: its schema and its batches."""

__all__: list[str] = []
