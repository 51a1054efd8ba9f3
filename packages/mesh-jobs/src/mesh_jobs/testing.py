"""The conformance kit that every job backend must pass."""

__all__: list[str] = []
