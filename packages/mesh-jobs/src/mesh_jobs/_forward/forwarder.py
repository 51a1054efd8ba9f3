"""Port forwarding to ranks through the mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from mesh_core import Point, this_proc
from mesh_jobs._forward.actors import ForwardConnector, ForwardListener

if TYPE_CHECKING:
    from typing import Self

    from mesh_core import Future, ProcMesh, ValueMesh
    from mesh_jobs._forward.actors import HostPort

__all__ = ["PortForwarder"]

Where: TypeAlias = "int | str | Callable[[Point], int | str]"

_LOOPBACK = "127.0.0.1"


class PortForwarder:
    """Forwarder of TCP connections from this program to a rank, or between ranks.

    The connections need no network path except the mesh. Anyone who can reach the listening address
    can connect to the forwarded port; each connection is forwarded separately. The forwarder
    listens until `stop`, or until the end of a `with` block.

    Example:
        >>> board = hosts.slice(hosts=0).spawn_procs()             # doctest: +SKIP
        >>> with PortForwarder(board, 6006) as forwarded:          # doctest: +SKIP
        ...     print(forwarded.addresses.values())
        ['127.0.0.1:41231']
    """

    def __init__(
        self,
        dst_proc_mesh: ProcMesh,
        dst_port: Where,
        src_proc_mesh: ProcMesh | None = None,
        src_address: Where = f"{_LOOPBACK}:0",
    ) -> None:
        """Start listening.

        Args:
            dst_proc_mesh: The processes that connect to the destinations.
            dst_port: The destination: a port on the loopback interface of that machine, a
                `host:port`, or a function that returns either for a point of the mesh.
            src_proc_mesh: The processes that listen, as many as in `dst_proc_mesh` and in the same
                order. Defaults to this program.
            src_address: The listening address, in the same forms; with port 0, the system chooses
                one.

        Raises:
            ValueError: The meshes differ in size, or an address is invalid.
            OSError: An address cannot be listened on.
        """
        source_procs = this_proc() if src_proc_mesh is None else src_proc_mesh
        if len(source_procs) != len(dst_proc_mesh):
            raise ValueError(
                f"{len(source_procs)} processes listen and {len(dst_proc_mesh)} connect: pass "
                "meshes of the same size"
            )
        ports = _places(dst_port, dst_proc_mesh)
        addresses = _places(src_address, source_procs)
        self._connector = dst_proc_mesh.spawn("forward-connector", ForwardConnector)
        self._listener = source_procs.spawn(
            "forward-listener", ForwardListener, self._connector, ports, addresses
        )
        try:
            self.addresses: ValueMesh[str] = self._listener.listen.call().get()
        except BaseException:
            self.stop().exception()
            raise

    def stop(self) -> Future[None]:
        """Stop listening, and close the open connections."""
        self._listener.stop().exception()
        return self._connector.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop().get()


def _places(where: Where, mesh: ProcMesh) -> list[HostPort]:
    if callable(where):
        return [_host_port(where(Point(rank, mesh.extent))) for rank in range(len(mesh))]
    return [_host_port(where)] * len(mesh)


def _host_port(where: int | str) -> HostPort:
    """Parse a port, or `host:port`.

    Raises:
        ValueError: The value is neither.
    """
    host, _, port = (str(where) if ":" in str(where) else f"{_LOOPBACK}:{where}").rpartition(":")
    if not port.isdecimal() or not int(port) < 1 << 16:
        raise ValueError(f"{where!r} is not a port: give 0 to 65535, or host:port")
    return host.strip("[]"), int(port)
