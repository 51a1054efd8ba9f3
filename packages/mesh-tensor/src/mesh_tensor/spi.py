"""What a new execution backend for distributed tensors implements."""

__all__: list[str] = []
