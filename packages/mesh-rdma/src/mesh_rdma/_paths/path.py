"""A way to a buffer that was found, and why no other one is taken."""

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
    """The transport that is taken for a buffer, and those that are not.

    Attributes:
        target: What copies.
        refused: The names of the other transports, and why each is not taken.
        wanted: The name of the only transport that may be taken, if somebody wants that.
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
        #: What copies where the memory here is a device's, and the target does not reach that.
        self.staged: StagedTarget | None = None
        self._built_in = built_in
        self._owner = owner

    @property
    def transport(self) -> str:
        """The name of the transport."""
        return self.target.transport

    def target_for(self, local: _core.Local) -> _core.Target | PluginTarget | StagedTarget:
        """Gives what copies between the buffer and this memory.

        Raises:
            RDMATransportError: The memory is a device's, and the transport that is wanted does not
                reach it.
        """
        if local.device is None or isinstance(self.target, StagedTarget):
            return self.target
        if isinstance(self.target, PluginTarget) and self.target.reaches_devices:
            return self.target
        if self.wanted is not None:
            raise RDMATransportError(
                f"{self.wanted} cannot be used with memory of cuda:{local.device}: "
                f"let the best way be taken, or {STAGED}"
            )
        if self.staged is None:
            built_in = self._built_in
            if built_in is None:
                raise RDMATransportError(f"no way from cuda:{local.device} to {self._owner}")
            self.staged = StagedTarget(built_in)
        return self.staged

    def borrow(self, offset: int, nbytes: int) -> _core.Loan:
        """Brings a range into view."""
        return self.target.borrow(offset, nbytes)

    def explanation(self) -> str:
        """Says in words what is taken and what is not."""
        lines = [f"{self.transport}: taken to {self._owner}"]
        lines += [f"{name}: {why}" for name, why in self.refused]
        return "\n".join(lines)
