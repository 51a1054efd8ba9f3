"""The result of a rule that is violated."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The location of a violation, and its remedy."""

    path: str
    line: int
    message: str
    is_warning: bool = False

    def __str__(self) -> str:
        """Format it so that editors and terminals can jump to the location."""
        kind = "warning: " if self.is_warning else ""
        return f"{self.path}:{self.line}: {kind}{self.message}"
