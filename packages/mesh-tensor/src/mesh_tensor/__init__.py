"""Write plain PyTorch; run it on every process of a mesh."""

__all__: list[str] = []
