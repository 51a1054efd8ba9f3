"""Fixtures and fakes for programs that mount directories."""

__all__: list[str] = []
