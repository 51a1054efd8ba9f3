"""A long way for packets: what the switch forwards to it comes back later, in the same order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.hosts.world.enclosure import Enclosure

_PROGRAM = Path(__file__).with_name("delay_line.py")


class Delay:
    """A port of the switch with a process behind it that holds packets back."""

    def __init__(self, outer: Enclosure, number: int, seconds: float, jitter_s: float) -> None:
        """Plugs it in; nothing goes that way yet.

        Args:
            outer: Where the switch is.
            number: Another one for every delay of a world.
            seconds: How long a packet takes.
            jitter_s: The longest that chance adds.

        Raises:
            subprocess.CalledProcessError: The port could not be made.
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
        # Nothing is to go this way but what is sent here on purpose.
        quiet = ["learning", "off", "flood", "off", "mcast_flood", "off", "bcast_flood", "off"]
        outer.run(["bridge", "link", "set", "dev", self.port, *quiet])
        words = [str(_PROGRAM), far, str(seconds), str(jitter_s), str(number)]
        self._process = outer.popen([sys.executable, "-I", "-S", *words], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == "ready\n", f"the delay line failed: {said!r}"

    def close(self) -> None:
        """Takes it away, with the packets that are on it."""
        self._process.release()
        self._outer.run(["ip", "link", "delete", self.port])
