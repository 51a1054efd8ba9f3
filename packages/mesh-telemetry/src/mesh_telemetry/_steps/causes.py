"""The causes of slow ranks: the part of a step for which they need more time than the others."""

from __future__ import annotations

from mesh_telemetry._steps.heat_map import heat_map

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_telemetry._hangs.slow_ranks import SlowRank
    from mesh_telemetry._steps.heat_map import Rows

__all__ = ["with_causes"]


def with_causes(slow: Sequence[SlowRank], rows: Rows) -> list[SlowRank]:
    """Set the causes of slow ranks whose steps are recorded.

    Args:
        slow: The slow ranks.
        rows: Runs a query.
    """
    causes = {
        (one.proc, one.pid): one.cause
        for mesh in {one.mesh for one in slow}
        for one in heat_map(rows, mesh).ranks
    }
    return [one._replace(cause=causes.get((one.proc, one.pid), "")) for one in slow]
