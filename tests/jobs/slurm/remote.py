"""What tests on the controller's host ask of the cluster: the power switches are outside.

The tests are programs on a host of the cluster, as any user's. Who made the cluster serves a socket
in a folder that both see: one JSON message with what to call and one with what came of it, for each
connection.
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

#: The variable with the path of the socket.
SOCKET_VARIABLE = "MESH_TEST_SLURM"

_MESSAGE_BYTES_MAX = 1 << 20


class RemoteCluster:
    """The cluster, as tests on its controller's host have it."""

    def __init__(self, path: str) -> None:
        """Takes the path of the socket; nothing is asked yet."""
        self._path = path

    @staticmethod
    def here() -> RemoteCluster | None:
        """Returns the cluster that this program runs on, if it does."""
        path = os.environ.get(SOCKET_VARIABLE)
        return RemoteCluster(path) if path else None

    @property
    def shared(self) -> Path:
        """A folder that all its hosts see."""
        return Path(self._path).parent

    def nodes(self) -> list[str]:
        """Returns the names of the nodes."""
        found: list[str] = self._ask("nodes")
        return found

    def power_cut(self, node: str) -> None:
        """Takes a node's power."""
        self._ask("power_cut", node)

    def power_on(self, node: str) -> None:
        """Boots a node, and returns when jobs may run there again."""
        self._ask("power_on", node)

    def stop_controller(self) -> None:
        """Ends the controller, which saves its state; what runs on the nodes goes on."""
        self._ask("stop_controller")

    def kill_controller(self) -> None:
        """Kills the controller: what it was told in the last seconds may be lost."""
        self._ask("kill_controller")

    def start_controller(self) -> None:
        """Starts the controller from its saved state, and returns when it answers."""
        self._ask("start_controller")

    def wait_until(self, wanted: dict[str, Sequence[str]]) -> None:
        """Waits until each of these nodes is in one of the states given for it."""
        self._ask("wait_until", wanted)

    def commands_on(self, node: str) -> list[str]:
        """Returns the command lines of what runs on a node, daemons left out."""
        found: list[str] = self._ask("commands_on", node)
        return found

    def mend(self) -> None:
        """Brings back all that a test has broken, and waits until all nodes are usable."""
        self._ask("mend")

    def _ask(self, what: str, *args: object) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.connect(self._path)
            asking.send(json.dumps([what, *args]).encode())
            answer = json.loads(asking.recv(_MESSAGE_BYTES_MAX) or b'{"error": "no answer"}')
        if "error" in answer:
            raise RuntimeError(f"the cluster could not {what}: {answer['error']}")
        return answer["result"]


class Switchboard:
    """Does what tests on the cluster ask for, one after another."""

    def __init__(self, cluster: SlurmCluster, path: Path) -> None:
        """Serves the socket from now on."""
        self._calls: dict[str, Callable[..., Any]] = {
            "nodes": lambda: [node.name for node in cluster.nodes],
            "power_cut": cluster.power_cut,
            "power_on": cluster.power_on,
            "kill_controller": cluster.kill_controller,
            "stop_controller": cluster.stop_controller,
            "start_controller": cluster.start_controller,
            "wait_until": cluster.wait_until,
            "commands_on": cluster.commands_on,
            "mend": cluster.mend,
        }
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serves no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                asking, _ = self._listener.accept()
            except OSError:
                return  # closed
            with asking:
                what, *args = json.loads(asking.recv(_MESSAGE_BYTES_MAX))
                answer: dict[str, Any]
                try:
                    answer = {"result": self._calls[what](*args)}
                except Exception as error:
                    notes = "\n".join(getattr(error, "__notes__", ()))
                    answer = {"error": f"{type(error).__name__}: {error}\n{notes}"}
                asking.send(json.dumps(answer).encode())
