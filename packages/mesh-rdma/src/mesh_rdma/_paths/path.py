"""The path to a buffer: the selected transport, and why the others are not used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_rdma._errors import RDMATransportError
from mesh_rdma._plugins.target import PluginTarget
from mesh_rdma._staged.messages import STAGED
from mesh_rdma._staged.target import StagedTarget

if TYPE_CHECKING:
    from mesh_rdma import _core

__all__ = ["Path"]


class Path:
    """The selected transport of a buffer, and the transports that are not used.

    Attributes:
        target: The object that copies by the selected transport.
        refused: The name of each other transport, with the reason why it is not used.
        wanted: The name of the only permitted transport, or None.
    """

    __slots__ = ("_built_in", "_owner", "refused", "staged", "target", "wanted")

    def __init__(
        self,
        target: _core.Target | PluginTarget | StagedTarget,
        refused: list[tuple[str, str]],
        owner: str,
        built_in: _core.Target | None = None,
    ) -> None:
        self.target = target
        self.refused = refused
        self.wanted: str | None = None
        #: The target for local memory of a device that `target` does not reach.
        self.staged: StagedTarget | None = None
        self._built_in = built_in
        self._owner = owner

    @property
    def transport(self) -> str:
        """The name of the transport."""
        return self.target.transport

    def target_for(self, local: _core.Local) -> _core.Target | PluginTarget | StagedTarget:
        """Return the target for copies between the buffer and local memory.

        Raises:
            RDMATransportError: The memory is on a device that the required transport does not
                reach.
        """
        if local.device is None or isinstance(self.target, StagedTarget):
            return self.target
        if isinstance(self.target, PluginTarget) and self.target.reaches_devices:
            return self.target
        if self.wanted is not None:
            raise RDMATransportError(
                f"{self.wanted} cannot be used with memory of cuda:{local.device}: "
                f"use the automatic selection, or {STAGED}"
            )
        if self.staged is None:
            built_in = self._built_in
            if built_in is None:
                raise RDMATransportError(f"no transport from cuda:{local.device} to {self._owner}")
            self.staged = StagedTarget(built_in)
        return self.staged

    def view(self, offset: int, nbytes: int) -> _core.View:
        """Map a range of the buffer for a view."""
        return self.target.view(offset, nbytes)

    def explanation(self) -> str:
        """Describe the selected transport and the others, one per line."""
        lines = [f"{self.transport}: taken to {self._owner}"]
        lines += [f"{name}: {why}" for name, why in self.refused]
        return "\n".join(lines)
