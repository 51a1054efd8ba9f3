"""The switch between the hosts: a bridge on which links are cut and packets filtered.

Network faults are injected here and not in the hosts, so that a host cannot distinguish them from
real ones, and so that they outlast power cuts of the hosts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.hosts.world.addresses import Place
from tests.hosts.world.enclosure import Enclosure
from tests.hosts.world.network import INTERFACE
from tests.hosts.world.traffic import Traffic

_SETUP = """set -eu
echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
ip link add switch type bridge stp_state 0 forward_delay 0 mcast_snooping 0
ip link set switch up
"""


@dataclass(frozen=True)
class Rule:
    """A verdict on packets from one host to another."""

    source: Place
    target: Place
    verdict: str
    """In the language of nft, with additional conditions if necessary: `meta l4proto tcp drop`."""
    is_last: bool = False
    """Evaluated after the other rules: for verdicts that forward the packet by another path."""


@dataclass
class _Port:
    """The port of one host."""

    place: Place
    is_plugged: bool = False
    cuts: int = 0
    """Number of faults that require the link to be down."""
    rates: list[int] = field(default_factory=list)
    """Bits per second towards the host, of all faults that limit them; the last one counts."""
    is_shaped: bool = False
    """Whether a rate limit is installed on the port."""
    before: Traffic = field(default_factory=Traffic)
    """Traffic over links that were removed since."""


class Switch:
    """A bridge with a port for every host."""

    def __init__(self, enclosure: Enclosure, places: Sequence[Place]) -> None:
        """Create the bridge in an enclosure, without links to hosts."""
        self._enclosure = enclosure
        self._ports = {place.name: _Port(place) for place in places}
        self._rules: list[Rule] = []
        self._is_filtering = False
        self._lock = threading.RLock()
        enclosure.run(["sh"], given=_SETUP)

    def plug_in(self, place: Place, pid: int, mtu: int) -> None:
        """Connect the interface of a host, which is in the network namespace of process `pid`."""
        port = place.port
        with self._lock:
            self._ip(
                f"link add {port} mtu {mtu} type veth"
                f" peer name {INTERFACE} address {place.ethernet} mtu {mtu} netns {pid}",
                f"link set {port} master switch",
            )
            # Every host has a static entry: packets for a missing host are dropped, not flooded.
            self._enclosure.run(
                ["bridge", "-batch", "-"],
                given=f"link set dev {port} learning off flood off mcast_flood off\n"
                f"fdb replace {place.ethernet} dev {port} master static\n",
            )
            plugged = self._ports[place.name]
            plugged.is_plugged, plugged.is_shaped = True, False
            self._settle(plugged)
            self._filter()

    @contextmanager
    def unplugging(self, place: Place) -> Iterator[None]:
        """Take the link down immediately, and remove it with the interface after the block."""
        with self._lock:
            port = self._ports[place.name]
            self._ip(f"link set {place.port} down")
            port.before += self._counted(port)
            port.is_plugged = False
            yield
            # The filter refers to the port by name.
            self._filter()
            # The kernel also removes the link when the host has ended, and may be faster.
            self._enclosure.run(["ip", "link", "delete", place.port], check=False)

    def cut(self, place: Place) -> None:
        """Take a link down until it is repaired as often as it was cut."""
        self._cut(place, 1)

    def repair(self, place: Place) -> None:
        """Undo one cut."""
        self._cut(place, -1)

    def limit(self, place: Place, bits_per_s: int) -> None:
        """Limit the rate of packets to a host."""
        with self._lock:
            port = self._ports[place.name]
            port.rates.append(bits_per_s)
            self._settle(port)

    def unlimit(self, place: Place, bits_per_s: int) -> None:
        """Remove one limit."""
        with self._lock:
            port = self._ports[place.name]
            port.rates.remove(bits_per_s)
            self._settle(port)

    def add_rules(self, rules: Sequence[Rule]) -> None:
        """Add rules atomically."""
        with self._lock:
            self._rules = [*self._rules, *rules]
            self._filter()

    def remove_rules(self, rules: Sequence[Rule]) -> None:
        """Remove rules atomically."""
        with self._lock:
            self._rules = list(self._rules)
            for rule in rules:
                self._rules.remove(rule)
            self._filter()

    def traffic(self, place: Place) -> Traffic:
        """Return the traffic on the link of a host, across power cuts."""
        with self._lock:
            port = self._ports[place.name]
            return port.before + self._counted(port) if port.is_plugged else port.before

    def _cut(self, place: Place, more: int) -> None:
        with self._lock:
            port = self._ports[place.name]
            port.cuts += more
            assert port.cuts >= 0, "repaired more often than cut"
            self._settle(port)

    def _settle(self, port: _Port) -> None:
        """Apply the desired state to the port."""
        if not port.is_plugged:
            return
        name = port.place.port
        self._ip(f"link set {name} {'down' if port.cuts else 'up'}")
        if port.rates:
            self._enclosure.run(["tc", *shaper(name, port.rates[-1])])
        elif port.is_shaped:
            self._enclosure.run(["tc", *no_shaper(name)])
        port.is_shaped = bool(port.rates)

    def _filter(self) -> None:
        """Replace all installed rules atomically."""
        if not self._rules and not self._is_filtering:
            return
        self._is_filtering = bool(self._rules)
        chains = []
        for port in self._ports.values():
            if port.is_plugged:
                mine = [rule for rule in self._rules if rule.source == port.place]
                chains += _chain(port.place.port, sorted(mine, key=lambda rule: rule.is_last))
        table = ["table netdev faults {", *chains, "}"]
        # Deleting a table that does not exist is an error, so the table is created first.
        swap = ["table netdev faults", "delete table netdev faults", *table]
        self._enclosure.run(["nft", "-f", "-"], given="\n".join(swap) + "\n")

    def _counted(self, port: _Port) -> Traffic:
        shown = self._enclosure.run(["ip", "-s", "-j", "link", "show", "dev", port.place.port])
        counts = json.loads(shown.stdout)[0]["stats64"]
        # The port receives what the host sends.
        return Traffic(
            bytes_in=counts["tx"]["bytes"],
            bytes_out=counts["rx"]["bytes"],
            packets_in=counts["tx"]["packets"],
            packets_out=counts["rx"]["packets"],
        )

    def _ip(self, *lines: str) -> None:
        self._enclosure.run(["ip", "-batch", "-"], given="\n".join(lines) + "\n")


def shaper(interface: str, bits_per_s: int) -> list[str]:
    """Return the arguments of `tc` that install a token bucket on an interface."""
    # The data of 5 ms, so that the rate also holds over short times, but at least one packet.
    burst_bytes = max(16_384, bits_per_s // 8 // 200)
    bucket = ["rate", f"{bits_per_s}bit", "burst", f"{burst_bytes}", "latency", "50ms"]
    return ["qdisc", "replace", "dev", interface, "root", "tbf", *bucket]


def no_shaper(interface: str) -> list[str]:
    """Return the arguments of `tc` that remove the token bucket."""
    return ["qdisc", "delete", "dev", interface, "root"]


def _chain(port: str, rules: Sequence[Rule]) -> list[str]:
    if not rules:
        return []
    head = f'type filter hook ingress device "{port}" priority 0;'
    lines = [f"ether daddr {rule.target.ethernet} {rule.verdict}" for rule in rules]
    return [f"chain {port} {{", head, *lines, "}"]
