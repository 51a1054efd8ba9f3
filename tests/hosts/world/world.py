"""A world: hosts on one virtual switch on this machine, without any other connection."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType

from tests.hosts.world.addresses import Place
from tests.hosts.world.enclosure import Enclosure
from tests.hosts.world.faults import Faults
from tests.hosts.world.host import Host, HostSettings
from tests.hosts.world.switch import Switch

#: Number of hosts that boot concurrently; they wait for the kernel most of the time.
_BOOTS_MAX = 4


class World:
    """Named hosts that reach each other and nothing else.

    with World(["client", "w0", "w1"]) as world:
        print(world["w0"].run(["hostname"]).stdout)
        with world.faults.link_down(world["w0"]):
            ...

    A world ends with the process that created it, however that exits, and leaves nothing behind.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        shared: Sequence[Path] = (),
        behind_nat: Collection[str] = (),
        congestion_control: str | None = "cubic",
        mtu: int = 1500,
    ) -> None:
        """Create the hosts and boot them.

        Args:
            names: The names of the hosts.
            shared: Folders and files that all hosts see, like a network drive, even inside /tmp or
                another private folder.
            behind_nat: Hosts whose address is translated for others, and that accept no incoming
                connections.
            congestion_control: The TCP congestion control between hosts. Default: the setting of
            the machine. mtu: Largest packet on the links, in bytes.

        Raises:
            EnclosureGone: Namespaces cannot be created here.
            subprocess.CalledProcessError: The kernel rejected a command; the note has its output.
        """
        assert len(set(names)) == len(names), "two hosts of the same name"
        assert set(behind_nat) <= set(names), "no such host"
        self._hosts: dict[str, Host] = {}
        self._outer = Enclosure(_start_outside, *user_namespace_options())
        try:
            self._outer.follow(os.getpid())
            places = [
                Place(name, number, is_behind_nat=name in behind_nat)
                for number, name in enumerate(names)
            ]
            self.switch = Switch(self._outer, places)
            settings = HostSettings(shared=shared, congestion_control=congestion_control, mtu=mtu)
            enclose = partial(Enclosure, self._start_inside)
            self._hosts = {
                place.name: Host(place, places, self.switch, enclose, settings) for place in places
            }
            with ThreadPoolExecutor(_BOOTS_MAX) as threads:
                for boot in [threads.submit(host.power_on) for host in self]:
                    boot.result()
        except BaseException:
            self.close()
            raise
        #: The faults to inject between and on the hosts.
        self.faults = Faults(self.switch, self._outer, self.hosts)

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts, in the order of the names given."""
        return tuple(self._hosts.values())

    def close(self) -> None:
        """End all processes of the world and remove it."""
        self._outer.kill()
        for host in self._hosts.values():
            host.close()

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start_inside(self, argv: Sequence[str], stdin: socket.socket, stderr: int) -> object:
        return self._outer.popen(argv, stdin=stdin.fileno(), stderr=stderr)


def user_namespace_options() -> list[str]:
    """Return the options that make us root inside if we are not root outside."""
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


def _start_outside(argv: Sequence[str], stdin: socket.socket, stderr: int) -> object:
    # A separate session, so that only the tests receive Ctrl-C.
    return subprocess.Popen(argv, stdin=stdin.fileno(), stderr=stderr, start_new_session=True)
