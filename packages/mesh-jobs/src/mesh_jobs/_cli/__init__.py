"""The command `mesh`; see docs/guides/cli.md."""

__all__: list[str] = []
