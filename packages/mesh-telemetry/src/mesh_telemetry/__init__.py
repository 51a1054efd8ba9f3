"""Ask a running mesh questions in SQL."""

__all__: list[str] = []
