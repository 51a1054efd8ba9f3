"""What a new way to move memory implements: the transport protocol and its probe."""

__all__: list[str] = []
