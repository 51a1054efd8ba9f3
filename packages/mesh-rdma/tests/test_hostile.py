"""Forged handles, and owners that do not respond, cause only typed errors."""

from __future__ import annotations

import os
import pickle
import random
import signal
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
from fork_server import ChildProcess, ForkServer, fill_byte
from freezing import freeze

from mesh_rdma import RDMABuffer, RDMAError, RDMAReadOnlyError, RDMATimeout, RDMATransportError
from mesh_rdma._core import Handle

if TYPE_CHECKING:
    from collections.abc import Iterator

TRANSPORTS = ("arena", "attach", "unix", "tcp")
LEN = 1 << 16
# The head of a handle: slot, key, length, address, segment, offset in the segment, flags.
REMOTE = struct.Struct("<IQQQIQB")


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer() as fork_server:
        yield fork_server


@pytest.fixture(scope="module")
def owner(fork_server: ForkServer) -> Iterator[ChildProcess]:
    child = fork_server.start("own", 0, True, LEN)
    yield child
    child.channel.close()


@pytest.fixture(scope="module")
def honest(owner: ChildProcess) -> RDMABuffer:
    buffer: RDMABuffer = owner.receive()
    return buffer


def changed(honest: RDMABuffer, **fields: int) -> RDMABuffer:
    """Return a handle that contradicts its owner."""
    data = honest._handle.encode()
    names = ("slot", "key", "length", "address", "segment", "place", "flags")
    said = dict(zip(names, REMOTE.unpack(data[: REMOTE.size]), strict=True))
    for name, value in fields.items():
        said[name] = value
    data = REMOTE.pack(*said.values()) + data[REMOTE.size :]
    handle = Handle.decode(data)
    return RDMABuffer._of(handle, min(handle.nbytes, LEN))


def said(honest: RDMABuffer) -> tuple[int, ...]:
    """Return the fields of a handle."""
    return REMOTE.unpack(honest._handle.encode()[: REMOTE.size])


LIES: dict[str, dict[str, int]] = {
    "another slot": {"slot": 77},
    "no such slot": {"slot": (1 << 32) - 1},
    "another key": {"key": 12345},
    "longer": {"length": 1 << 40},
    "longest": {"length": (1 << 64) - 1},
    "elsewhere": {"address": 4096},
    "at the end": {"address": (1 << 64) - 1},
    "another segment": {"segment": 9},
    "behind the segment": {"place": 1 << 60},
    "at the end of all places": {"place": (1 << 64) - 1},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_forged_handle_raises_a_typed_error_or_has_no_effect(
    honest: RDMABuffer, transport: str, lie: str
) -> None:
    """A lie has no effect where the owner is authoritative; otherwise, it is refused."""
    buffer = changed(honest, **LIES[lie])
    here = bytearray(buffer.size())
    wrong = bytes([255]) * buffer.size()
    for use in (
        lambda: buffer.via(transport).read_into(here).get(),
        lambda: buffer.via(transport)[-8:].read_into(here).get(),
        lambda: buffer.via(transport).fetch_add(0).get(),
    ):
        try:
            use()
        except RDMAError:
            continue
        assert here != wrong
    assert {*here} <= {0, fill_byte(0)}
    honest.via(transport).read_into(here).get()
    assert {*here} == {fill_byte(0)}


@pytest.mark.parametrize("transport", ["arena", "attach"])
def test_memory_outside_the_buffer_is_inaccessible(honest: RDMABuffer, transport: str) -> None:
    """A handle with another location, or a larger length, is refused before any copy."""
    _, _, length, address, _, place, _ = said(honest)
    lies: list[dict[str, int]] = [
        {"address": address + 1, "place": place + 1},
        {"address": address - 4096, "place": place - 4096 if place else 4096},
        {"length": length + 1},
    ]
    for lie in lies:
        with pytest.raises(RDMATransportError, match="says otherwise"):
            changed(honest, **lie).via(transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_read_only_memory_cannot_be_written_with_a_forged_handle(
    fork_server: ForkServer, transport: str
) -> None:
    """A handle that claims to be writable does not make the memory writable."""
    child = fork_server.start("own_read_only", LEN)
    fixed: RDMABuffer = child.receive()
    _, _, _, _, _, _, flags = said(fixed)
    liar = changed(fixed, flags=flags | 1)
    assert liar.is_writable
    buffer = liar.via(transport)
    for future in (buffer.write_from(b"never"), buffer.fetch_add(1)):
        with pytest.raises(RDMAReadOnlyError):
            future.get()
    here = bytearray(LEN)
    buffer.read_into(here).get()
    assert here == bytes(LEN)
    child.channel.close()


def test_invalid_handle_bytes_are_refused(honest: RDMABuffer) -> None:
    data = honest._handle.encode()
    dice = random.Random(3)
    for _ in range(300):
        broken: Any = bytearray(data[: dice.randrange(len(data) + 1)])
        for _ in range(dice.randrange(4)):
            if broken:
                broken[dice.randrange(len(broken))] = dice.randrange(256)
        try:
            Handle.decode(bytes(broken))
        except ValueError:
            continue
    assert pickle.loads(pickle.dumps(honest)) == honest


def test_an_unresponsive_owner_does_not_delay_other_reads(fork_server: ForkServer) -> None:
    """Reads from a stopped process time out, and do not delay reads of other threads."""
    stuck, well = (fork_server.start("own", number, False, LEN) for number in (1, 2))
    lost: RDMABuffer = stuck.receive()
    kept: RDMABuffer = well.receive()
    destinations = [bytearray(LEN) for _ in range(12)]
    kept.via("unix").read_into(destinations[0]).get()
    lost.via("unix").read_into(destinations[0]).get()
    try:
        freeze(stuck.pid)
        buffer = lost.via("unix")
        began = time.monotonic()
        pending = [buffer.read_into(destination, timeout=1.5) for destination in destinations]
        here = bytearray(LEN)
        future = kept.via("unix").read_into(here, timeout=60.0)
        # No thread helps with this transfer, as when an event loop waits for it.
        while not future.done():
            os.sched_yield()
        assert here == bytes([fill_byte(2)]) * LEN
        assert not all(one.done() for one in pending) or time.monotonic() - began > 1.5
        for one in pending:
            with pytest.raises(RDMATimeout):
                one.get()
    finally:
        os.kill(stuck.pid, signal.SIGCONT)
    lost.via("unix").read_into(destinations[0]).get()
    for child in (stuck, well):
        child.channel.close()
