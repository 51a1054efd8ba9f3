"""The traffic on the link of a host, counted at the switch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Bytes and packets on one link since the world was created, as seen by the host.

    The numbers match the host's own counters: they include Ethernet headers, and a large segment
    that the sender leaves to the (virtual) interface to segment counts as one packet with one
    header.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    packets_in: int = 0
    packets_out: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
            self.packets_in + other.packets_in,
            self.packets_out + other.packets_out,
        )

    def __sub__(self, earlier: Traffic) -> Traffic:
        return self + Traffic(
            -earlier.bytes_in, -earlier.bytes_out, -earlier.packets_in, -earlier.packets_out
        )
