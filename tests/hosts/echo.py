"""A server on a host that echoes all data."""

from __future__ import annotations

from types import TracebackType

from tests.hosts.world import Host, HostProcess

_CODE = """
import socket, sys, threading

def answer(connection):
    with connection:
        try:
            while piece := connection.recv(1 << 16):
                connection.sendall(piece)
        except OSError:
            pass

where = ("::", int(sys.argv[1]))
with socket.create_server(where, family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print("ready", flush=True)
    while True:
        threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
"""


class EchoServer:
    """A process that listens once it is created, until the end of the `with` block."""

    PORT = 7777

    def __init__(self, host: Host) -> None:
        """Start the process."""
        self.process: HostProcess = host.start_python(_CODE, str(self.PORT))
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def __enter__(self) -> EchoServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.release()
