"""Holds back every packet that arrives on a card, and sends it out again on the same card.

    python delay_line.py CARD SECONDS JITTER_SECONDS SEED

It runs by itself, beside the switch.
"""

import contextlib
import random
import select
import socket
import sys
import time
from collections import deque

# From linux/if_packet.h and linux/if_ether.h; Python has no names for them.
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_IGNORE_OUTGOING = 23
_ETH_P_ALL = 3

#: The largest segment that a virtual card takes whole, and the header that describes it.
_PACKET_BYTES_MAX = 65536 + 128

#: More than a packet on a fast, long line: what does not fit is lost, as in any router.
_WAITING_BYTES_MAX = 256 << 20
_RECEIVE_BUFFER_BYTES = 64 << 20

#: The kernel rounds waits up to milliseconds; the rest of a wait is spent looking at the clock.
_SPIN_S = 0.0002


def open_card(card: str) -> socket.socket:
    """Opens a card for whole frames, also those too large for the wire that are to be cut up."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    packets.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    packets.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    # The forced one needs more rights; the other is clipped to what the machine allows.
    for option in (socket.SO_RCVBUF, 33):
        with contextlib.suppress(OSError):
            packets.setsockopt(socket.SOL_SOCKET, option, _RECEIVE_BUFFER_BYTES)
    packets.bind((card, _ETH_P_ALL))
    return packets


class Line:
    """Packets on their way."""

    def __init__(self, packets: socket.socket, seconds: float, jitter_s: float, seed: int) -> None:
        """Takes a card, and how long packets take."""
        self._packets = packets
        self._seconds = seconds
        self._jitter_s = jitter_s
        self._chance = random.Random(seed)
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._last_due = 0.0

    def carry(self) -> None:
        """Carries packets for ever."""
        poll = select.poll()
        poll.register(self._packets, select.POLLIN)
        while True:
            poll.poll(self._wait_ms())
            self._take()
            self._give(time.monotonic())

    def _wait_ms(self) -> float | None:
        if not self._waiting:
            return None
        left = self._waiting[0][0] - time.monotonic() - _SPIN_S
        # Rounded down, so that packets leave in time.
        return max(0, int(left * 1000))

    def _take(self) -> None:
        """Takes in some of what arrived; the rest can wait until what is due has left."""
        for _ in range(64):
            try:
                packet = self._packets.recv(_PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            if self._bytes + len(packet) > _WAITING_BYTES_MAX:
                continue
            due = time.monotonic() + self._seconds + self._chance.random() * self._jitter_s
            # None overtakes another.
            self._last_due = max(due, self._last_due)
            self._waiting.append((self._last_due, packet))
            self._bytes += len(packet)

    def _give(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            _, packet = self._waiting.popleft()
            self._bytes -= len(packet)
            # A queue that is full loses packets, as in any router.
            with contextlib.suppress(OSError):
                self._packets.send(packet)


def main(argv: list[str]) -> None:
    """Carries packets until it is killed."""
    card, seconds, jitter_s, seed = argv
    line = Line(open_card(card), float(seconds), float(jitter_s), int(seed))
    print("ready", flush=True)
    line.carry()


if __name__ == "__main__":
    main(sys.argv[1:])
