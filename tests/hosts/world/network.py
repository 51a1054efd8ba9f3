"""The shell script that configures the addresses and routes of a host."""

from __future__ import annotations

from collections.abc import Sequence

from tests.hosts.world.addresses import PREFIX, PREFIX6, Place

#: Name of the network interface on a host.
INTERFACE = "eth0"


def network_script(own: Place, places: Sequence[Place], congestion_control: str | None) -> str:
    """Return a script that configures the interface that the switch has just added."""
    congestion = f" congctl {congestion_control}" if congestion_control else ""
    # Behind NAT the host is its own router, and its addresses are not on the shared network.
    interface = "lo" if own.is_behind_nat else INTERFACE
    v4, v6 = own.own_address, own.own_address6
    commands = [
        "link set lo up",
        f"link set {INTERFACE} addrgenmode none",
        f"link set {INTERFACE} up",
        f"address add {v4}/{PREFIX} dev {interface} noprefixroute",
        f"address add {v6}/{PREFIX6} dev {interface} nodad noprefixroute",
        f"route add 10.77.0.0/{PREFIX} dev {INTERFACE} src {v4}{congestion}",
        f"route add fd77::/{PREFIX6} dev {INTERFACE} src {v6}{congestion}",
    ]
    # Neighbour entries are permanent: packets to a missing host are lost as behind a router, and
    # only packets of the programs are counted.
    for place in places:
        if place != own:
            neighbour = f"lladdr {place.ethernet} nud permanent dev {INTERFACE}"
            commands.append(f"neighbour replace {place.address} {neighbour}")
            commands.append(f"neighbour replace {place.address6} {neighbour}")
    lines = [
        "set -eu",
        f"echo 0 > /proc/sys/net/ipv6/conf/{INTERFACE}/router_solicitations",
        f"echo 0 > /proc/sys/net/ipv6/conf/{INTERFACE}/accept_ra",
        *_given("ip -batch -", commands),
    ]
    if own.is_behind_nat:
        lines += _given("nft -f -", _router(own))
    return "\n".join(lines) + "\n"


def _router(own: Place) -> list[str]:
    """Return rules that translate the source address and allow outgoing connections only."""
    return [
        "table inet router {",
        "chain out {",
        "type nat hook postrouting priority srcnat;",
        f"oifname {INTERFACE} ip saddr {own.own_address} snat ip to {own.address}",
        f"oifname {INTERFACE} ip6 saddr {own.own_address6} snat ip6 to {own.address6}",
        "}",
        "}",
    ]


def _given(command: str, lines: Sequence[str]) -> list[str]:
    return [f"{command} <<'END'", *lines, "END"]
