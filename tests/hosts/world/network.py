"""The shell script that configures the addresses and routes of a host."""

from __future__ import annotations

from collections.abc import Sequence

from tests.hosts.world.addresses import PREFIX, PREFIX6, Place

#: Name of the network card on a host.
CARD = "eth0"


def network_script(own: Place, places: Sequence[Place], congestion_control: str | None) -> str:
    """Return a script that configures the card that the switch has just added."""
    congestion = f" congctl {congestion_control}" if congestion_control else ""
    # Behind NAT the host is its own router, and its addresses are not on the shared network.
    card = "lo" if own.is_behind_nat else CARD
    v4, v6 = own.own_address, own.own_address6
    commands = [
        "link set lo up",
        f"link set {CARD} addrgenmode none",
        f"link set {CARD} up",
        f"address add {v4}/{PREFIX} dev {card} noprefixroute",
        f"address add {v6}/{PREFIX6} dev {card} nodad noprefixroute",
        f"route add 10.77.0.0/{PREFIX} dev {CARD} src {v4}{congestion}",
        f"route add fd77::/{PREFIX6} dev {CARD} src {v6}{congestion}",
    ]
    # Neighbour entries are permanent: packets to a missing host are lost as behind a router, and
    # only packets of the programs are counted.
    for place in places:
        if place != own:
            neighbour = f"lladdr {place.ethernet} nud permanent dev {CARD}"
            commands.append(f"neighbour replace {place.address} {neighbour}")
            commands.append(f"neighbour replace {place.address6} {neighbour}")
    lines = [
        "set -eu",
        f"echo 0 > /proc/sys/net/ipv6/conf/{CARD}/router_solicitations",
        f"echo 0 > /proc/sys/net/ipv6/conf/{CARD}/accept_ra",
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
        f"oifname {CARD} ip saddr {own.own_address} snat ip to {own.address}",
        f"oifname {CARD} ip6 saddr {own.own_address6} snat ip6 to {own.address6}",
        "}",
        "}",
    ]


def _given(command: str, lines: Sequence[str]) -> list[str]:
    return [f"{command} <<'END'", *lines, "END"]
