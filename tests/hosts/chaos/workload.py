"""The interface of a workload for chaos runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.hosts.world import Host, World


class CallFailed(Exception):
    """A call ended with an error that its caller can handle.

    The message is the type of the error. Failures are counted by it.
    """


class Workload(Protocol):
    """A service on all hosts except the first, which makes the calls."""

    @property
    def port(self) -> int:
        """The port on which the service listens on each host."""
        ...

    def start(self, world: World, folder: Path) -> None:
        """Start the service and return when it accepts calls.

        Args:
            world: The hosts.
            folder: A folder that all hosts share and that survives their power cuts.
        """

    def call(self, number: int, host: Host) -> None:
        """Call the service on a host and return when it has replied.

        Several threads call this method concurrently, each time with a different number. The
        workload has to limit the time of a call; a call that never ends is reported as hung.

        Raises:
            CallFailed: The call ended with an error of a known type.
        """

    def victims(self, host: Host) -> Sequence[int]:
        """Return the processes on a host that may be killed or stopped."""
        ...

    def restore(self, host: Host) -> None:
        """Restore the service of a host after a power cut or the loss of a process.

        The method is empty if the workload recovers without help.
        """

    def executions(self) -> Mapping[int, int]:
        """Return the number of executions of each call; called once, at the end."""
        ...

    def declared_dead(self) -> Mapping[str, int]:
        """Return how often each host was declared dead, by name; called once, at the end."""
        ...

    def stop(self) -> None:
        """Stop the service."""
