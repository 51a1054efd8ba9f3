"""What a rule says when it is broken."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A place, and what to do about it."""

    path: str
    line: int
    message: str
    is_warning: bool = False

    def __str__(self) -> str:
        """Formats it the way editors and terminals can jump to."""
        kind = "warning: " if self.is_warning else ""
        return f"{self.path}:{self.line}: {kind}{self.message}"
