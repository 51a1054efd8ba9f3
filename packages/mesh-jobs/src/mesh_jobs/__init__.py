"""Get hosts from a scheduler once, and run program after program on them."""

__all__: list[str] = []
