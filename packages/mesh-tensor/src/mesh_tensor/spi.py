"""Interface for new execution backends of distributed tensors."""

__all__: list[str] = []
