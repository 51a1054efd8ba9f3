"""Where in a message the value sits that cannot travel: looked for only once it failed."""

from __future__ import annotations

from mesh_core._errors import Unpicklable, safe_str

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["unpicklable"]


def unpicklable(
    value: object,
    error: Exception,
    probe: Callable[[object], None],
    names: Sequence[str] | None = None,
) -> Unpicklable:
    return Unpicklable(safe_str(error))
