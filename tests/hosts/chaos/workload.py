"""What chaos is let loose on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.hosts.world import Host, World


class CallFailed(Exception):
    """A call ended with an error that its caller can understand and act on.

    Its message is the type of the error, by which failures are counted.
    """


class Workload(Protocol):
    """A service on all hosts but the first, which calls come from."""

    @property
    def port(self) -> int:
        """Where the service listens on each host."""
        ...

    def start(self, world: World, folder: Path) -> None:
        """Starts the service, and returns when it answers.

        Args:
            world: The hosts.
            folder: What all hosts see, and what outlasts their power cuts.
        """

    def call(self, number: int, host: Host) -> None:
        """Makes a call to what is on a host, and returns when it is answered.

        It is called from many threads at the same time, each time with another number. Having a
        time limit of its own is up to the workload; one without an end is found out.

        Raises:
            CallFailed: It was not answered, and it was said why.
        """

    def victims(self, host: Host) -> Sequence[int]:
        """Returns the processes on a host that may be killed or stopped."""
        ...

    def restore(self, host: Host) -> None:
        """Brings a host back into service, once its power or a process has been taken from it.

        A workload that sees to this by itself does nothing.
        """

    def executions(self) -> Mapping[int, int]:
        """Returns how often the call of each number was carried out; asked once, at the end."""
        ...

    def stop(self) -> None:
        """Ends the service."""
