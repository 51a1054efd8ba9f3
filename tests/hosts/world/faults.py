"""The faults of a world. Each is active until it is healed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import permutations, product

from tests.hosts.world.delay import Delay
from tests.hosts.world.enclosure import Enclosure
from tests.hosts.world.fault import Fault
from tests.hosts.world.host import Host
from tests.hosts.world.switch import Rule, Switch

#: A verdict on TCP packets that resets existing connections and refuses new ones.
_RESET = "meta l4proto tcp reject with tcp reset"


class Faults:
    """The faults of one world, as `world.faults`."""

    def __init__(self, switch: Switch, outer: Enclosure, hosts: Sequence[Host]) -> None:
        """Create the faults of these hosts."""
        self._switch = switch
        self._outer = outer
        self._hosts = tuple(hosts)
        self._delays = 0
        self._lock = threading.Lock()

    def link_down(self, host: Host) -> Fault:
        """Unplug the cable of a host: its interface has no carrier."""
        self._switch.cut(host.place)
        return Fault(f"link of {host.name} down", lambda: self._switch.repair(host.place))

    def partition(self, side: Iterable[Host]) -> Fault:
        """Drop all packets between these hosts and all others, silently."""
        here = list(side)
        there = [host for host in self._hosts if host not in here]
        pairs = [*product(here, there), *product(there, here)]
        return self._rules(f"partition of {_names(here)}", pairs, "drop")

    def drop(self, source: Host, target: Host, *, is_one_way: bool = False) -> Fault:
        """Drop all packets between two hosts, or only those from the first to the second."""
        arrow = ">" if is_one_way else "<>"
        pairs = _pairs(source, target, is_one_way)
        return self._rules(f"drop {source.name} {arrow} {target.name}", pairs, "drop")

    def loss(self, percent: float, hosts: Iterable[Host] | None = None) -> Fault:
        """Drop this percentage of packets at random, each way between any two of the hosts.

        A large segment that the sender leaves to its interface to segment is dropped as a whole.
        """
        among = self._hosts if hosts is None else tuple(hosts)
        verdict = f"numgen random mod 100000 < {round(percent * 1000)} drop"
        return self._rules(f"loss of {percent} %", list(permutations(among, 2)), verdict)

    def reset(self, one: Host, other: Host) -> Fault:
        """Reset all connections between two hosts and refuse new ones while the fault is active."""
        pairs = _pairs(one, other, is_one_way=False)
        fault = self._rules(f"reset {one.name} <> {other.name}", pairs, _RESET)
        # An idle connection would not notice the rule.
        for here, there in pairs:
            _kill_connections(here, there)
        return fault

    def reset_once(self, one: Host, other: Host) -> Fault:
        """Reset all connections between two hosts; they may reconnect immediately."""
        _kill_connections(one, other)
        _kill_connections(other, one)
        return Fault(f"reset once {one.name} <> {other.name}", lambda: None)

    def bandwidth(self, host: Host, bits_per_s: int) -> Fault:
        """Limit the bandwidth of the link of a host, separately for each direction."""
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
        """Delay every packet between two hosts by `seconds` each way, plus a random jitter.

        Packets keep their order. A process delays them, which adds about a millisecond on a busy
        machine.
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
        """Cut the power of a host; healing boots it without processes and with empty folders."""
        host.power_cut()
        return Fault(f"power cut of {host.name}", host.power_on)

    def pause(self, host: Host) -> Fault:
        """Stop all processes of a host; healing resumes them if the host has power."""
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
    """Close the connections of a host to a peer; the kernel sends the peer a reset."""
    if host.is_on:
        for address in (peer.address, f"[{peer.address6}]"):
            host.run(["ss", "-K", "-H", "-t", "state", "connected", "dst", address])
