"""Where a layer above is asked to have tensors on processes: found by its entry point.

This package knows nothing of tensors. Which distribution does is found in the group
`mesh_core.tensors`, once, when a program first asks for it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from mesh_core._core import Region
    from mesh_core._meshes.mesh import ProcMesh

__all__ = ["GROUP", "LayerCall", "NeedsLayer", "TensorLayer", "tensor_layer"]

GROUP = "mesh_core.tensors"


class TensorLayer(Protocol):
    """What an entry point of the group gives when it is loaded."""

    def activate(self, procs: ProcMesh, region: Region) -> AbstractContextManager[Any]:
        """Gives a context in which new tensors are made on processes.

        Args:
            procs: All processes that were spawned together; equal each time.
            region: Which of them, and what the dimensions are called.
        """

    def call(self, call: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls actors with arguments that only the layer can send, or keeps what they return.

        Raises:
            TypeError: The layer cannot send them either.
        """

    def serve(self, function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
        """Gives what serves such a call in the process of an actor.

        Args:
            function: The method; its first argument is the actor.
            is_async: Whether calling it gives a coroutine, as calling the result must then.

        Returns:
            What is called in its place, with what the layer has sent as the last argument.
        """


class NeedsLayer(TypeError):
    """Raised by the pickling of what has no meaning elsewhere, but which the layer can send."""


class LayerCall:
    """A call that a layer carries out.

    Attributes:
        name: What is called.
        verb: How: `call`, `call_one`, `stream` or `broadcast`; `choose` for one that was picked;
            `rref` to keep the results.
        procs: All processes that those of the actors were spawned with.
        region: Which of them have the actors.
        port: The port of the actors, for `mesh_core.spi.local_actor`.
        propagate: What the endpoint says of its results.
        has_timeout: Whether it may be given up without anybody's asking for it.
        send: Sends what the processes need to know, as the only argument; answers as the verb does,
            for `rref` as `call` does.
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
def tensor_layer() -> TensorLayer:
    """Gives the layer that knows of tensors.

    Raises:
        RuntimeError: None is installed, or several are.
    """
    # Looking through all that is installed takes milliseconds, and few programs ask.
    from importlib.metadata import entry_points

    found = list(entry_points(group=GROUP))
    if not found:
        raise RuntimeError("nothing that knows of tensors is installed: pip install mesh-tensor")
    if len(found) > 1:
        names = ", ".join(sorted(one.dist.name if one.dist else one.value for one in found))
        raise RuntimeError(f"several packages say that tensors are theirs: keep one of {names}")
    layer: TensorLayer = found[0].load()
    return layer
