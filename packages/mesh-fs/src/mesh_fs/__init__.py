"""Mount a directory of the client on every host of a mesh."""

__all__: list[str] = []
