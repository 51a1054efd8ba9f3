"""A host of a world: its namespaces, an interface on the switch, and a power switch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.hosts.world.addresses import Place
from tests.hosts.world.enclosure import Enclosure, EnclosureGone, Source, environment
from tests.hosts.world.network import INTERFACE, network_script
from tests.hosts.world.private_files import HOME, private_files_script
from tests.hosts.world.process import HostProcess
from tests.hosts.world.switch import Switch, no_shaper, shaper
from tests.hosts.world.traffic import Traffic

#: Our values of these variables name folders that do not exist on a host.
_OUTER_VARIABLES = ("TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


#: Time limit for a process to stop; a process that waits for a disk stops late.
_STOP_LIMIT_S = 10.0


class HostOff(RuntimeError):
    """The host has no power: no process can run on it until `power_on`."""


class Host:
    """A separate machine from the perspective of the programs on it.

    It has its own network, processes, host name, /etc/hosts, /tmp, /run, /dev/shm and home folder.
    It shares the rest of the file system with the machine.
    """

    def __init__(
        self,
        place: Place,
        places: Sequence[Place],
        switch: Switch,
        enclose: Callable[[], Enclosure],
        settings: HostSettings,
    ) -> None:
        """Create a host without power."""
        self.place = place
        self._places = places
        self._switch = switch
        self._enclose = enclose
        self._settings = settings
        self._enclosure: Enclosure | None = None
        self._rates: list[int] = []
        self._is_shaped = False
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"Host({self.name})"

    @property
    def name(self) -> str:
        """The host name."""
        return self.place.name

    @property
    def address(self) -> str:
        """The IPv4 address that other hosts see."""
        return self.place.address

    @property
    def address6(self) -> str:
        """The IPv6 address that other hosts see."""
        return self.place.address6

    @property
    def is_on(self) -> bool:
        """Whether the host has power."""
        return self._enclosure is not None

    @property
    def enter_command(self) -> str:
        """The shell command to inspect the host."""
        return f"nsenter --target {self._inside.pids[0]} --all"

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of processes: ours without variables that are invalid there."""
        ours = {
            name: value for name, value in environment().items() if name not in _OUTER_VARIABLES
        }
        return {**ours, "HOME": HOME, "HOSTNAME": self.name, **(more or {})}

    def popen(
        self,
        argv: Sequence[str],
        *,
        stdin: Source = subprocess.DEVNULL,
        stdout: Source = None,
        stderr: Source = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = "/",
    ) -> HostProcess:
        """Start a process on the host, with additional environment variables if given.

        Raises:
            OSError: The process cannot be started.
            HostOff: The host has no power.
        """
        variables = self.environment(env)
        try:
            return self._inside.popen(
                argv, stdin=stdin, stdout=stdout, stderr=stderr, env=variables, cwd=cwd
            )
        except EnclosureGone:
            raise self._off() from None

    def run(
        self,
        argv: Sequence[str],
        *,
        given: str = "",
        check: bool = True,
        timeout: float | None = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = "/",
    ) -> subprocess.CompletedProcess[str]:
        """Run a process on the host to completion.

        Raises:
            subprocess.CalledProcessError: The process failed and `check` is set.
            subprocess.TimeoutExpired: The process took too long and was killed.
            OSError: The process cannot be started.
            HostOff: The host has no power.
        """
        variables = self.environment(env)
        try:
            return self._inside.run(
                argv, given=given, check=check, timeout=timeout, env=variables, cwd=cwd
            )
        except EnclosureGone:
            raise self._off() from None

    def python(
        self, code: str, *args: str, timeout: float | None = 60.0, check: bool = True
    ) -> str:
        """Run Python code on the host, with the interpreter of the tests, and return its output.

        Raises:
            subprocess.CalledProcessError: The process failed and `check` is set.
            subprocess.TimeoutExpired: The process took too long and was killed.
            HostOff: The host has no power.
        """
        command = [sys.executable, "-c", code, *args]
        return self.run(command, timeout=timeout, check=check).stdout

    def start_python(
        self, code: str, *args: str, env: Mapping[str, str] | None = None
    ) -> HostProcess:
        """Start Python code on the host, with pipes for standard input and output.

        Raises:
            HostOff: The host has no power.
        """
        pipe = subprocess.PIPE
        return self.popen([sys.executable, "-c", code, *args], stdin=pipe, stdout=pipe, env=env)

    def open_socket(
        self,
        family: socket.AddressFamily = socket.AF_INET,
        kind: socket.SocketKind = socket.SOCK_STREAM,
    ) -> socket.socket:
        """Return a socket that the test owns and that is in the network of the host.

        It can only use addresses, not host names: name resolution uses /etc/hosts of the test.

        Raises:
            HostOff: The host has no power.
        """
        try:
            return self._inside.open_socket(family, kind)
        except EnclosureGone:
            raise self._off() from None

    def listen(self, port: int) -> socket.socket:
        """Return a socket of the host that listens for IPv4 and IPv6 connections.

        Raises:
            OSError: The port is in use.
            HostOff: The host has no power.
        """
        listener = self.open_socket(socket.AF_INET6)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(("::", port))
            listener.listen()
        except BaseException:
            listener.close()
            raise
        return listener

    def connect(self, address: str, port: int, timeout: float | None = 10.0) -> socket.socket:
        """Return a socket of the host that is connected to an IPv4 or IPv6 address.

        Raises:
            OSError: The address cannot be reached in time.
            HostOff: The host has no power.
        """
        connected = self.open_socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            connected.settimeout(timeout)
            connected.connect((address, port))
        except BaseException:
            connected.close()
            raise
        return connected

    def traffic(self) -> Traffic:
        """Return the traffic on the link of the host since the world was created."""
        return self._switch.traffic(self.place)

    def power_on(self) -> None:
        """Boot the host: no processes, empty private folders, the same addresses.

        Raises:
            EnclosureGone: The namespaces could not be created.
        """
        with self._lock:
            if self._enclosure is not None:
                return
            enclosure = self._enclose()
            self._enclosure = enclosure
            self._is_shaped = False
            files = private_files_script(self.place, self._places, self._settings.shared)
            enclosure.run(["sh"], given=files)
            # The switch is one namespace further out than the host.
            self._switch.plug_in(self.place, enclosure.pids[-2], self._settings.mtu)
            enclosure.run(
                ["sh"],
                given=network_script(self.place, self._places, self._settings.congestion_control),
            )
            self._shape()

    def power_cut(self) -> None:
        """Cut the power: no process is notified, and no packet announces it."""
        with self._lock:
            if self._enclosure is not None:
                with self._switch.unplugging(self.place):
                    self._enclosure.kill()
                    self._enclosure = None

    def close(self) -> None:
        """Release the host of a world that has ended."""
        if self._enclosure is not None:
            self._enclosure.kill()

    def pause(self) -> None:
        """Stop all processes and return when all have stopped; the kernel still responds for them.

        Processes that are started afterwards run.

        Raises:
            HostOff: The host has no power.
            TimeoutError: A process did not stop.
        """
        self._signal_all(signal.SIGSTOP)
        # Each process stops only when it would be scheduled next.
        until = time.monotonic() + _STOP_LIMIT_S
        while running := [pid for pid in self.pids() if not _has_stopped(pid)]:
            if time.monotonic() > until:
                raise TimeoutError(f"processes {running} of {self.name} do not stop")
            time.sleep(0.001)

    def resume(self) -> None:
        """Resume all processes.

        Raises:
            HostOff: The host has no power.
        """
        self._signal_all(signal.SIGCONT)

    def limit_sending(self, bits_per_s: int) -> None:
        """Limit the sending rate of its interface; the limit survives a power cut."""
        with self._lock:
            self._rates.append(bits_per_s)
            self._shape()

    def unlimit_sending(self, bits_per_s: int) -> None:
        """Remove one limit."""
        with self._lock:
            self._rates.remove(bits_per_s)
            self._shape()

    def pids(self) -> list[int]:
        """Return the pids of its processes as seen from outside, without the pid of the agent."""
        if self._enclosure is None:
            return []
        agent = self._enclosure.pids[0]
        namespace = _pid_namespace(agent)
        found = (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())
        return [pid for pid in found if pid != agent and _pid_namespace(pid) == namespace]

    @property
    def _inside(self) -> Enclosure:
        if self._enclosure is None:
            raise self._off()
        return self._enclosure

    def _off(self) -> HostOff:
        return HostOff(f"{self.name} has no power: call power_on first")

    def _signal_all(self, number: int) -> None:
        try:
            self._inside.signal_all(number)
        except EnclosureGone:
            raise self._off() from None

    def _shape(self) -> None:
        if self._enclosure is None:
            return
        if self._rates:
            self._enclosure.run(["tc", *shaper(INTERFACE, self._rates[-1])])
        elif self._is_shaped:
            self._enclosure.run(["tc", *no_shaper(INTERFACE)])
        self._is_shaped = bool(self._rates)


class HostSettings:
    """The settings that all hosts of a world share."""

    def __init__(
        self,
        *,
        shared: Sequence[Path] = (),
        congestion_control: str | None = None,
        mtu: int = 1500,
    ) -> None:
        """Create the settings; see `World` for the arguments."""
        self.shared = tuple(shared)
        self.congestion_control = congestion_control
        self.mtu = mtu


def _has_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "TtZX"
    except OSError:
        return True  # The process has exited.


def _pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None  # The process has exited or is not ours.
