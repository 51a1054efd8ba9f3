"""Fixtures and fakes for programs that use distributed tensors."""

__all__: list[str] = []
