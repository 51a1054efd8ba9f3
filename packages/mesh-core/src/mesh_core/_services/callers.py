"""The reports of the callers of a service."""

from __future__ import annotations

import asyncio
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._services.view import Loads, Report

__all__ = ["Callers"]

# A caller without a report for this time has no outstanding calls; otherwise it would report.
_SILENCE_S = 2.0


class Callers:
    """The latest report of each calling process."""

    def __init__(self) -> None:
        self._reports: dict[int, tuple[float, Report]] = {}
        self._heard = asyncio.Event()

    def __len__(self) -> int:
        return len(self._recent())

    def heard(self, report: Report) -> None:
        """Record the report of a caller."""
        if report.is_last:
            self._reports.pop(report.caller, None)
        else:
            self._reports[report.caller] = (time.monotonic(), report)
        self._heard.set()

    def _recent(self) -> list[Report]:
        oldest = time.monotonic() - _SILENCE_S
        for caller, (at, _) in list(self._reports.items()):
            if at < oldest:
                del self._reports[caller]
        return [report for _, report in self._reports.values()]

    def loads(self, caller: int | None = None) -> Loads:
        """Return the load of all callers except one, by replica."""
        loads: Loads = {}
        for report in self._recent():
            if report.caller != caller:
                for id, (calls, sessions) in report.loads.items():
                    before = loads.get(id, (0, 0))
                    loads[id] = (before[0] + calls, before[1] + sessions)
        return loads

    def queued(self) -> int:
        """Return the number of calls that wait for capacity."""
        return sum(report.queued for report in self._recent())

    async def idle(self, ids: set[int], version: int, timeout_s: float) -> bool:
        """Wait until all callers know a version and have no outstanding calls to some replicas.

        Returns:
            Whether this happened within `timeout_s`.
        """
        until = time.monotonic() + timeout_s
        while True:
            self._heard.clear()
            busy = [
                report
                for report in self._recent()
                if report.version < version or any(report.loads.get(id, (0, 0))[0] for id in ids)
            ]
            left_s = until - time.monotonic()
            if not busy or left_s <= 0:
                return not busy
            try:
                # A caller that has died sends no further reports.
                async with asyncio.timeout(min(left_s, _SILENCE_S / 4)):
                    await self._heard.wait()
            except TimeoutError:
                continue
