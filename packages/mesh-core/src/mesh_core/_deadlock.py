"""Waiting inside an actor, and noticing when the wait can never end.

An actor that waits for itself is found at once. A longer circle (A waits for B, B for A) is found by
asking: an actor that has waited for a while asks the process of the one it waits for what *that*
one waits for, and so on; coming back to itself, it raises `DeadlockError` with the names.
"""

from __future__ import annotations

import time
from typing import overload

from mesh_core._config import effective
from mesh_core._context import serving
from mesh_core._errors import DeadlockError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._core import Engine, Message
    from mesh_core._endpoint import Endpoint

__all__ = ["check_wait", "waiting_on"]

# What each actor of this process waits for: port -> (reply port, name of endpoint). Written by the
# actor's own thread, read by the agent.
_waits: dict[int, tuple[int, str]] = {}
_HOPS_MAX = 64


def waiting_on(port: int) -> tuple[list[tuple[int, int]], str] | None:
    """Says which actors, as (process, port), the actor on `port` waits for, and by which call."""
    wait = _waits.get(port)
    if wait is None:
        return None
    from mesh_core._runtime import runtime

    reply, name = wait
    targets = [(proc, to) for r, proc, to in runtime().engine.waits() if r == reply]
    return targets, name


@overload
def check_wait(
    engine: Engine, reply: int, endpoint: Endpoint[..., Any], timeout: None
) -> list[Message]: ...
@overload
def check_wait(
    engine: Engine, reply: int, endpoint: Endpoint[..., Any], timeout: float | None
) -> list[Message] | None: ...
def check_wait(
    engine: Engine, reply: int, endpoint: Endpoint[..., Any], timeout: float | None
) -> list[Message] | None:
    """Waits for answers from within an actor.

    Raises:
        DeadlockError: The wait can never end.
    """
    current = serving()
    assert current is not None
    cell = current.cell
    if cell.is_exclusive(current):
        mesh = endpoint._mesh
        me = (engine.me, cell.port)
        if mesh._port == cell.port and any(proc == engine.me for proc, _ in mesh._targets):
            engine.cancel(reply)
            raise DeadlockError(
                f"actor {cell.name!r} waits in {cell.running_name!r} for its own endpoint "
                f"{endpoint.name!r}, which starts only when {cell.running_name!r} has ended: call "
                f"self.{endpoint.name}(...) directly, or make it a concurrent_endpoint",
                cycle=(cell.name, cell.name),
            )
    else:
        return engine.wait(reply, timeout)
    until = None if timeout is None else time.monotonic() + timeout
    _waits[cell.port] = (reply, endpoint.name)
    try:
        while True:
            slice_s = effective().deadlock_probe_s
            if until is not None:
                slice_s = min(slice_s, max(until - time.monotonic(), 0))
            answers = engine.wait(reply, slice_s)
            if answers is not None:
                return answers
            if until is not None and time.monotonic() >= until:
                return None
            cycle = _find_cycle(me, cell.name)
            if cycle:
                engine.cancel(reply)
                raise DeadlockError(
                    "actors wait for each other in a circle: " + " -> ".join(cycle)
                    + ": await or return before calling back, or use a concurrent_endpoint",
                    cycle=cycle,
                )
    finally:
        _waits.pop(cell.port, None)


def _find_cycle(start: tuple[int, int], name: str) -> list[str] | None:
    """Follows the waits from one actor on; the names on the way when they lead back to it."""
    from mesh_core._runtime import runtime

    paths = [(start, [name])]
    seen = {start}
    while paths and len(seen) < _HOPS_MAX:
        actor, names = paths.pop()
        answer = runtime().ask_agent(actor[0], "waiting_on", actor[1], timeout=1.0)
        if answer is None:
            continue
        targets, endpoint = answer
        for target in targets:
            if target == start:
                return [*names, f"{endpoint!r} of {name}"]
            if target not in seen:
                seen.add(target)
                paths.append((target, [*names, f"{endpoint!r} of {target[0] & 0xFFFF_FFFF}"]))
    return None


