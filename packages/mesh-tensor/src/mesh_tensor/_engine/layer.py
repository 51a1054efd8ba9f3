"""The engines of proc meshes, created when a mesh is first activated."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from mesh_tensor._engine.engine import Engine
from mesh_tensor._mesh.activation import activate
from mesh_tensor._remote.actor_calls import call_actors
from mesh_tensor._worker.actor_calls import ActorCallCanceller, serve
from mesh_tensor._worker.interpreter import Interpreter

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from mesh_core import ProcMesh, Region
    from mesh_core.spi import TensorEngineCall
    from mesh_tensor._mesh.device_mesh import DeviceMesh

__all__ = ["layer"]


class _Layer:
    """The implementation of tensors for `mesh_core`: a `mesh_core.spi.TensorEngine`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[ProcMesh, Engine] = {}

    def activate(self, procs: ProcMesh, region: Region) -> AbstractContextManager[DeviceMesh]:
        """Create new tensors on these processes until the `with` block ends."""
        return activate(self.engine(procs).mesh(region))

    def engine(self, procs: ProcMesh) -> Engine:
        """Return the engine of a proc mesh; a new one if processes have died."""
        with self._lock:
            engine = self._engines.get(procs)
            if engine is not None and engine.is_over:
                engine.close()
                engine = None
            if engine is None:
                engine = self._engines[procs] = _engine_of(procs)
            return engine

    def call(self, call: TensorEngineCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call actors with tensors of their processes; see `mesh_tensor._remote.actor_calls`."""
        return call_actors(self.engine(call.procs), ActorCallCanceller, call, args, kwargs)

    def serve(self, function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
        """Return the wrapper that serves such a call in the process of the actor."""
        return serve(function, is_async)


def _engine_of(procs: ProcMesh) -> Engine:
    workers = procs.spawn("mesh_tensor", Interpreter)

    def join() -> None:
        flat = workers.flatten("procs")
        address, port = flat.slice(procs=0).open_store.call_one().get()
        # Raise the first failure immediately: the other processes would wait for minutes.
        for joined in workers.join.stream(address, port, len(procs)):
            joined.get()

    return Engine(workers, len(procs), join)


layer = _Layer()
