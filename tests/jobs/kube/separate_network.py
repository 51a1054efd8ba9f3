"""A separate network that can reach the API server, but not the pods."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tests.jobs.kube.breakable_proxy import BreakableProxy

_NEW_NETWORK = 0x40000000


@dataclass(frozen=True)
class SeparateNetwork:
    """A network namespace. Prefix a command with `command` to run it there."""

    pid: int
    proxy: BreakableProxy

    @property
    def command(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]


def why_not() -> str:
    """Return why no such network can be created here; empty if it can."""
    if os.geteuid() != 0:
        return "a network namespace needs root"
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return "a network namespace needs unshare, nsenter and ip"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return tried.stderr.strip()


@contextlib.contextmanager
def separate_network(host: str, port: int) -> Iterator[SeparateNetwork]:
    """Create a network that contains only the API server, at the address that it has here."""
    inside = ["sh", "-c", "ip link set lo up && echo up && exec cat"]
    command = ["unshare", "--net", "--", *inside]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "up\n"
        proxy = BreakableProxy(host, port, listener=_listener_in(process.pid, host, port))
        yield SeparateNetwork(process.pid, proxy)
        proxy.end()
        process.stdin.close()


def _listener_in(pid: int, host: str, port: int) -> socket.socket:
    """Create a listening socket in the network of another process."""
    made: list[socket.socket] = []

    def listen() -> None:
        # `setns` affects only this thread, which exits afterwards.
        number = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(number, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(number)
        made.append(socket.create_server((host, port)))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    return made[0]
