"""Control of the cluster for tests that run inside it, on the host of the controller.

The tests are programs on a host of the cluster, like the programs of any user, and the power
switches are outside. The process that created the cluster listens on a socket in a shared folder:
each connection carries one JSON message with a call and one with its result.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.jobs.slurm.cluster import SlurmCluster

#: The environment variable with the path of the socket.
SOCKET_VARIABLE = "MESH_TEST_SLURM"

_MESSAGE_BYTES_MAX = 1 << 20


class RemoteCluster:
    """The cluster, as tests on the host of its controller see it."""

    def __init__(self, path: str) -> None:
        """Create a client for the socket without connecting to it."""
        self._path = path

    @staticmethod
    def here() -> RemoteCluster | None:
        """Return the cluster on which this program runs, or None."""
        path = os.environ.get(SOCKET_VARIABLE)
        return RemoteCluster(path) if path else None

    @property
    def shared(self) -> Path:
        """A folder that all hosts of the cluster see."""
        return Path(self._path).parent

    def nodes(self) -> list[str]:
        """Return the names of the nodes."""
        found: list[str] = self._ask("nodes")
        return found

    def power_cut(self, node: str) -> None:
        """Cut the power of a node."""
        self._ask("power_cut", node)

    def power_on(self, node: str) -> None:
        """Boot a node, and return when it accepts jobs again."""
        self._ask("power_on", node)

    def stop_controller(self) -> None:
        """Stop the controller, which saves its state; jobs on the nodes continue."""
        self._ask("stop_controller")

    def kill_controller(self) -> None:
        """Kill the controller: changes of the last seconds may be lost."""
        self._ask("kill_controller")

    def start_controller(self) -> None:
        """Start the controller from its saved state, and return when it replies."""
        self._ask("start_controller")

    def wait_until(self, wanted: dict[str, Sequence[str]]) -> None:
        """Wait until each of these nodes is in one of its wanted states."""
        self._ask("wait_until", wanted)

    def commands_on(self, node: str) -> list[str]:
        """Return the command lines of the processes on a node, without the daemons."""
        found: list[str] = self._ask("commands_on", node)
        return found

    def repair(self) -> None:
        """Restore everything that a test has broken, and wait until all nodes are usable."""
        self._ask("repair")

    def _ask(self, what: str, *args: object) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.connect(self._path)
            asking.send(json.dumps([what, *args]).encode())
            answer = json.loads(asking.recv(_MESSAGE_BYTES_MAX) or b'{"error": "no answer"}')
        if "error" in answer:
            raise RuntimeError(f"the cluster could not {what}: {answer['error']}")
        return answer["result"]


class Switchboard:
    """Executes the requests of tests on the cluster, one at a time."""

    def __init__(self, cluster: SlurmCluster, path: Path) -> None:
        """Start to serve the socket."""
        self._calls: dict[str, Callable[..., Any]] = {
            "nodes": lambda: [node.name for node in cluster.nodes],
            "power_cut": cluster.power_cut,
            "power_on": cluster.power_on,
            "kill_controller": cluster.kill_controller,
            "stop_controller": cluster.stop_controller,
            "start_controller": cluster.start_controller,
            "wait_until": cluster.wait_until,
            "commands_on": cluster.commands_on,
            "repair": cluster.repair,
        }
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving the socket."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                asking, _ = self._listener.accept()
            except OSError:
                return  # The listener was closed.
            with asking:
                what, *args = json.loads(asking.recv(_MESSAGE_BYTES_MAX))
                answer: dict[str, Any]
                try:
                    answer = {"result": self._calls[what](*args)}
                except Exception as error:
                    notes = "\n".join(getattr(error, "__notes__", ()))
                    answer = {"error": f"{type(error).__name__}: {error}\n{notes}"}
                asking.send(json.dumps(answer).encode())
