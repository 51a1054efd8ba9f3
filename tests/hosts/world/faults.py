"""What can go wrong in a world: each of these is in force until it is healed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import permutations, product

from tests.hosts.world.delay import Delay
from tests.hosts.world.enclosure import Enclosure
from tests.hosts.world.fault import Fault
from tests.hosts.world.host import Host
from tests.hosts.world.switch import Rule, Switch

#: The verdict on TCP that makes the sender believe that nobody listens, now or any more.
_RESET = "meta l4proto tcp reject with tcp reset"


class Faults:
    """The faults of one world, as `world.faults`."""

    def __init__(self, switch: Switch, outer: Enclosure, hosts: Sequence[Host]) -> None:
        """Takes what it makes them with."""
        self._switch = switch
        self._outer = outer
        self._hosts = tuple(hosts)
        self._delays = 0
        self._lock = threading.Lock()

    def link_down(self, host: Host) -> Fault:
        """Cuts the cable of a host: its card has no carrier."""
        self._switch.cut(host.place)
        return Fault(f"link of {host.name} down", lambda: self._switch.mend(host.place))

    def partition(self, side: Iterable[Host]) -> Fault:
        """Parts some hosts from all others: packets between the sides are lost in silence."""
        here = list(side)
        there = [host for host in self._hosts if host not in here]
        pairs = [*product(here, there), *product(there, here)]
        return self._rules(f"partition of {_names(here)}", pairs, "drop")

    def drop(self, source: Host, target: Host, *, is_one_way: bool = False) -> Fault:
        """Loses all packets between two hosts, or only those from the first to the second."""
        arrow = ">" if is_one_way else "<>"
        pairs = _pairs(source, target, is_one_way)
        return self._rules(f"drop {source.name} {arrow} {target.name}", pairs, "drop")

    def loss(self, percent: float, hosts: Iterable[Host] | None = None) -> Fault:
        """Loses that many packets in a hundred, by chance, each way between any two of the hosts.

        Segments that the sender leaves to its card to cut up are lost together.
        """
        among = self._hosts if hosts is None else tuple(hosts)
        verdict = f"numgen random mod 100000 < {round(percent * 1000)} drop"
        return self._rules(f"loss of {percent} %", list(permutations(among, 2)), verdict)

    def reset(self, one: Host, other: Host) -> Fault:
        """Resets all connections between two hosts, and those they try to make while it lasts."""
        pairs = _pairs(one, other, is_one_way=False)
        fault = self._rules(f"reset {one.name} <> {other.name}", pairs, _RESET)
        # A connection on which nothing is sent would not notice.
        for here, there in pairs:
            _kill_connections(here, there)
        return fault

    def reset_once(self, one: Host, other: Host) -> Fault:
        """Resets all connections between two hosts; they may make new ones at once."""
        _kill_connections(one, other)
        _kill_connections(other, one)
        return Fault(f"reset once {one.name} <> {other.name}", lambda: None)

    def bandwidth(self, host: Host, bits_per_s: int) -> Fault:
        """Limits what goes over the link of a host, each way for itself."""
        self._switch.limit(host.place, bits_per_s)
        host.limit_sending(bits_per_s)

        def heal() -> None:
            host.unlimit_sending(bits_per_s)
            self._switch.unlimit(host.place, bits_per_s)

        return Fault(f"{host.name} at {bits_per_s / 1e6:g} Mbit/s", heal)

    def delay(
        self,
        one: Host,
        other: Host,
        seconds: float,
        *,
        jitter_s: float = 0.0,
        is_one_way: bool = False,
    ) -> Fault:
        """Delays every packet between two hosts by so long, each way, and up to the jitter more.

        Their order stays. A process does this: add about a millisecond on a busy machine.
        """
        with self._lock:
            self._delays += 1
            number = self._delays
        line = Delay(self._outer, number, seconds, jitter_s)
        pairs = _pairs(one, other, is_one_way)
        rules = self._rules("", pairs, f'fwd to "{line.port}"', is_last=True)

        def heal() -> None:
            rules.heal()
            line.close()

        arrow = ">" if is_one_way else "<>"
        return Fault(f"delay {one.name} {arrow} {other.name} by {seconds * 1e3:g} ms", heal)

    def power_cut(self, host: Host) -> Fault:
        """Takes the power of a host; healing boots it, with nothing on it."""
        host.power_cut()
        return Fault(f"power cut of {host.name}", host.power_on)

    def pause(self, host: Host) -> Fault:
        """Stops all processes of a host; healing lets them go on, if it still has power."""
        host.pause()

        def heal() -> None:
            if host.is_on:
                host.resume()

        return Fault(f"pause of {host.name}", heal)

    def _rules(
        self,
        name: str,
        pairs: Iterable[tuple[Host, Host]],
        verdict: str,
        *,
        is_last: bool = False,
    ) -> Fault:
        rules = [Rule(here.place, there.place, verdict, is_last) for here, there in pairs]
        self._switch.add_rules(rules)
        return Fault(name, lambda: self._switch.remove_rules(rules))


def _pairs(one: Host, other: Host, is_one_way: bool) -> list[tuple[Host, Host]]:
    return [(one, other)] if is_one_way else [(one, other), (other, one)]


def _names(hosts: Iterable[Host]) -> str:
    return ", ".join(host.name for host in hosts)


def _kill_connections(host: Host, peer: Host) -> None:
    """Ends the connections that a host has with a peer; the kernel sends the peer a reset."""
    if host.is_on:
        for address in (peer.address, f"[{peer.address6}]"):
            host.run(["ss", "-K", "-H", "-t", "state", "connected", "dst", address])
