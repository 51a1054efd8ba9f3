"""Ports of ranks, reached from elsewhere through the mesh."""

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
    """TCP connections from here to a rank, or from ranks to ranks, through the mesh.

    Nothing but the mesh has to connect the two: whoever can reach the address that is listened at
    gets to the port behind, as one connection each. It listens until `stop`, or to the end of a
    `with` block.

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
        """Begins to listen.

        Args:
            dst_proc_mesh: Where connections go out.
            dst_port: To which port of that machine's loopback; or to which `host:port`; or a
                function of the place in the mesh that says so.
            src_proc_mesh: Where connections come in: as many processes, the first for the first.
                This program when left out.
            src_address: Where it listens, in the same forms; port 0 is one that the system chooses.

        Raises:
            ValueError: The meshes differ in size, or an address is none.
            OSError: An address cannot be listened at.
        """
        source_procs = this_proc() if src_proc_mesh is None else src_proc_mesh
        if len(source_procs) != len(dst_proc_mesh):
            raise ValueError(
                f"connections come in at {len(source_procs)} processes and go out at "
                f"{len(dst_proc_mesh)}: give meshes of the same size"
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
        """Listens no more, and ends the connections that are open."""
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
    """Reads a port, or `host:port`.

    Raises:
        ValueError: It is neither.
    """
    host, _, port = (str(where) if ":" in str(where) else f"{_LOOPBACK}:{where}").rpartition(":")
    if not port.isdecimal() or not int(port) < 1 << 16:
        raise ValueError(f"{where!r} is not a port: give 0 to 65535, or host:port")
    return host.strip("[]"), int(port)
