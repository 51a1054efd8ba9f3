"""Interface to the package that implements tensors, which is found by its entry point.

This package does not depend on tensors. When a program first needs them, Mesh looks up the
distribution that implements them, once, in the entry point group `mesh_core.tensors`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from mesh_core._core import Region
    from mesh_core._meshes.proc_mesh import ProcMesh

__all__ = ["GROUP", "RequiresTensorEngine", "TensorEngine", "TensorEngineCall", "tensor_engine"]

GROUP = "mesh_core.tensors"


class TensorEngine(Protocol):
    """The object that an entry point of the group provides."""

    def activate(self, procs: ProcMesh, region: Region) -> AbstractContextManager[Any]:
        """Return a context in which new tensors are created on processes.

        Args:
            procs: All processes that were spawned together; equal for each call.
            region: The selected processes and their dimension names.
        """

    def call(self, call: TensorEngineCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call actors with arguments that only the layer can send, or keep their results remotely.

        Raises:
            TypeError: The layer cannot send the arguments either.
        """

    def serve(self, function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
        """Return the function that serves such a call in the process of an actor.

        Args:
            function: The method; its first argument is the actor.
            is_async: Whether calling it returns a coroutine. The result must then do the same.

        Returns:
            The function to call instead, with the message of the layer as the last argument.
        """


class RequiresTensorEngine(TypeError):
    """Pickling found an object that has no meaning elsewhere but that the layer can send."""


# Tracebacks show the public name.
RequiresTensorEngine.__module__ = "mesh_core.spi"


class TensorEngineCall:
    """A call that a layer executes.

    Attributes:
        name: The name of the endpoint.
        verb: The kind of call: `call`, `call_one`, `stream` or `broadcast`; `choose` for one
            selected actor; `rref` to keep the results remotely.
        procs: All processes that were spawned together with the processes of the actors.
        region: The processes that have the actors.
        port: The port of the actors, for `mesh_core.spi.current_process.local_actor`.
        propagate: The endpoint's declaration of its results.
        has_timeout: Whether the call may be abandoned without a request by the caller.
        send: Sends the message for the processes, as the only argument. It returns the result
            of the verb, or for `rref` the result of `call`.
    """

    __slots__ = ("has_timeout", "name", "port", "procs", "propagate", "region", "send", "verb")

    def __init__(
        self,
        name: str,
        verb: str,
        procs: ProcMesh,
        region: Region,
        port: int,
        propagate: Any,
        has_timeout: bool,
        send: Callable[[Any], Any],
    ) -> None:
        self.name: str = name
        self.verb: str = verb
        self.procs: ProcMesh = procs
        self.region: Region = region
        self.port: int = port
        self.propagate: Any = propagate
        self.has_timeout: bool = has_timeout
        self.send: Callable[[Any], Any] = send


@cache
def tensor_engine() -> TensorEngine:
    """Return the layer that implements tensors.

    Raises:
        RuntimeError: No such layer is installed, or several are.
    """
    # Few programs search all installed distributions, and the import takes milliseconds.
    from importlib.metadata import entry_points  # noqa: PLC0415

    found = list(entry_points(group=GROUP))
    if not found:
        raise RuntimeError("no package for tensors is installed: pip install torchmesh-tensor")
    if len(found) > 1:
        names = ", ".join(sorted(one.dist.name if one.dist else one.value for one in found))
        raise RuntimeError(f"several packages handle tensors: keep one of {names}")
    layer: TensorEngine = found[0].load()
    return layer
