"""Finds the actors that others wait for although no collective is involved."""

from __future__ import annotations

from mesh_telemetry._hangs.culprits import culprit_of_call
from mesh_telemetry._hangs.hang import Hang

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mesh_telemetry._hangs.process_state import ProcessState

__all__ = ["find_waits"]


def find_waits(states: Iterable[ProcessState]) -> list[Hang]:
    """Return a hang for each process that others wait for and that waits for none itself."""
    procs = {state.proc: state for state in states if not state.is_script}
    found: dict[int, Hang] = {}
    for state in procs.values():
        for wait in state.waits:
            asker, last, seen = state, wait, {state.proc}
            while last.proc in procs and procs[last.proc].waits and last.proc not in seen:
                asker = procs[last.proc]
                seen.add(asker.proc)
                last = asker.waits[0]
            end = procs.get(last.proc)
            if end is not None and end.proc not in seen and end.proc not in found:
                culprit = culprit_of_call(end, last, asker)
                found[end.proc] = Hang(culprit.kind, None, (culprit,), is_certain=False)
    return list(found.values())
