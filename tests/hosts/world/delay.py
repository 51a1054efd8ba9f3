"""Packet delay: the switch forwards packets to a port that returns them later, in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.hosts.world.enclosure import Enclosure

_PROGRAM = Path(__file__).with_name("delay_line.py")


class Delay:
    """A port of the switch with a process behind it that delays packets."""

    def __init__(self, outer: Enclosure, number: int, seconds: float, jitter_s: float) -> None:
        """Add the port to the switch; no packets are redirected to it yet.

        Args:
            outer: The enclosure of the switch.
            number: A number that no other delay of the world has.
            seconds: The delay of each packet.
            jitter_s: Maximum of the random additional delay.

        Raises:
            subprocess.CalledProcessError: The port could not be created.
        """
        self.port = f"delay{number}"
        self._outer = outer
        far = f"far{number}"
        commands = [
            f"link add {self.port} type veth peer name {far}",
            f"link set {self.port} master switch",
            f"link set {self.port} up",
            f"link set {far} up promisc on",
        ]
        outer.run(["ip", "-batch", "-"], given="\n".join(commands) + "\n")
        # Only packets that a rule redirects may use this port.
        quiet = ["learning", "off", "flood", "off", "mcast_flood", "off", "bcast_flood", "off"]
        outer.run(["bridge", "link", "set", "dev", self.port, *quiet])
        words = [str(_PROGRAM), far, str(seconds), str(jitter_s), str(number)]
        self._process = outer.popen([sys.executable, "-I", "-S", *words], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == "ready\n", f"the delay line failed: {said!r}"

    def close(self) -> None:
        """Remove the port and drop the packets in transit."""
        self._process.release()
        self._outer.run(["ip", "link", "delete", self.port])
