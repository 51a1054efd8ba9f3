"""Delay every packet that arrives on an interface, and send it on the same interface afterwards.

    python delay_line.py INTERFACE SECONDS JITTER_SECONDS SEED

It runs as a separate process in the namespaces of the switch.
"""

import contextlib
import random
import select
import socket
import sys
import time
from collections import deque

# From linux/if_packet.h and linux/if_ether.h; Python does not define them.
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_IGNORE_OUTGOING = 23
_ETH_P_ALL = 3

#: The largest segment that a virtual interface accepts unsegmented, plus its virtio header.
_PACKET_BYTES_MAX = 65536 + 128

#: Exceeds the bandwidth-delay product of a fast, long line; excess packets are dropped.
_WAITING_BYTES_MAX = 256 << 20
_RECEIVE_BUFFER_BYTES = 64 << 20

#: The kernel rounds timeouts up to milliseconds, so the end of a wait is a busy loop.
_SPIN_S = 0.0002


def open_interface(interface: str) -> socket.socket:
    """Open an interface for raw frames, including segments that the interface would split."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    packets.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    packets.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    # SO_RCVBUFFORCE (33) needs more privileges; SO_RCVBUF is clipped to the limit of the machine.
    for option in (socket.SO_RCVBUF, 33):
        with contextlib.suppress(OSError):
            packets.setsockopt(socket.SOL_SOCKET, option, _RECEIVE_BUFFER_BYTES)
    packets.bind((interface, _ETH_P_ALL))
    return packets


class Line:
    """The packets in transit."""

    def __init__(self, packets: socket.socket, seconds: float, jitter_s: float, seed: int) -> None:
        """Create a line on an interface with a fixed delay and a maximum jitter."""
        self._packets = packets
        self._seconds = seconds
        self._jitter_s = jitter_s
        self._chance = random.Random(seed)
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._last_due = 0.0

    def carry(self) -> None:
        """Carry packets forever."""
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
        # Rounded down, so that packets are sent on time.
        return max(0, int(left * 1000))

    def _take(self) -> None:
        """Read a limited number of packets; the others wait until due packets have been sent."""
        for _ in range(64):
            try:
                packet = self._packets.recv(_PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            if self._bytes + len(packet) > _WAITING_BYTES_MAX:
                continue
            due = time.monotonic() + self._seconds + self._chance.random() * self._jitter_s
            # Packets keep their order.
            self._last_due = max(due, self._last_due)
            self._waiting.append((self._last_due, packet))
            self._bytes += len(packet)

    def _give(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            _, packet = self._waiting.popleft()
            self._bytes -= len(packet)
            # A full queue drops packets, as in any router.
            with contextlib.suppress(OSError):
                self._packets.send(packet)


def main(argv: list[str]) -> None:
    """Carry packets until the process is killed."""
    interface, seconds, jitter_s, seed = argv
    line = Line(open_interface(interface), float(seconds), float(jitter_s), int(seed))
    print("ready", flush=True)
    line.carry()


if __name__ == "__main__":
    main(sys.argv[1:])
