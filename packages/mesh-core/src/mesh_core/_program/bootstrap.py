"""Setup of a process: the user's `bootstrap`, which runs before any actor.

While it runs, spawns and status queries from other processes are held back. An actor that waits for
this process therefore waits for `bootstrap`, and `bootstrap` may wait for that actor. Deadlock
detection treats `bootstrap` as the only message of an actor.
"""

from __future__ import annotations

import threading

from mesh_core._calls.deadlock import set_up_runs
from mesh_core._calls.event_loop import load_asyncio, loop_thread
from mesh_core._runtime.serving import Serving
from mesh_core._serialization.pickler import decode
from mesh_core._serialization.wire import AGENT
from mesh_core._shapes.shape import Extent

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable
    from typing import Any

    from mesh_core._runtime.runtime import Runtime

__all__ = ["SetUp", "run_set_up"]


class SetUp:
    """Stand-in for an `ActorCell` in deadlock detection while `bootstrap` runs.

    Attributes:
        runtime: The runtime of the process.
        engine: Its engine.
        name: The name of the process mesh.
        port: The port of the agent, which responds after `bootstrap` has ended.
        first_name: The name of the running function.
    """

    first_name = "bootstrap"
    port = AGENT

    def __init__(self, runtime: Runtime) -> None:
        table = runtime.identity.table
        self.runtime = runtime
        self.engine = runtime.engine
        self.name: str = "procs" if table is None else table.name
        self._thread = threading.get_ident()
        self._task: asyncio.Task[Any] | None = None

    def is_exclusive(self, _current: Serving) -> bool:
        """Return True: nothing else is served before `bootstrap` has ended."""
        return True

    def has_queued(self, _call: tuple[int, int]) -> bool:
        """Return True: a call without a reply waits for `bootstrap`."""
        return True

    def is_held_by(self, _current: Serving) -> bool:
        """Return whether `bootstrap` waits when this thread waits."""
        if threading.get_ident() == self._thread:
            return True
        if self._task is None or threading.get_ident() != _loop_ident():
            return False
        return load_asyncio().current_task() is self._task

    def is_on_loop(self) -> bool:
        """Return False: no actor depends on the event loop yet."""
        return False

    def task_of(self, _call: object, _is_exclusive: bool) -> asyncio.Task[Any] | None:
        """Return the task that runs an async `bootstrap`."""
        return self._task

    async def finish(self, made: Awaitable[None]) -> None:
        """Await an async `bootstrap`."""
        self._task = load_asyncio().current_task()
        await made


def run_set_up(runtime: Runtime, bootstrap: bytes) -> BaseException | None:
    """Run the pickled `bootstrap` of a process and return the exception that it raised."""
    set_up: Any = SetUp(runtime)
    set_up_runs(Serving(set_up, None, Extent((), ())))
    try:
        made = decode(bootstrap)()
        if hasattr(made, "__await__"):
            loop_thread().submit(set_up.finish(made)).result()
    except BaseException as error:
        return error
    finally:
        set_up_runs(None)
    return None


def _loop_ident() -> int | None:
    return loop_thread().thread.ident
