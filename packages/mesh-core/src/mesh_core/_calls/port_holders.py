"""Registry of the processes that hold, or will receive, the ports that this process waits for.

The waiting process keeps the registry: either it has the receiver of a channel, or one of its
endpoints was called and has sent its response port to another process.
"""

from __future__ import annotations

from mesh_core._core import Message, Targets
from mesh_core._runtime.runtime import runtime
from mesh_core._serialization.wire import POST, PROC_DIED
from mesh_core._supervision.failure import FailureDetail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._calls.port_transit import Label

    Address = tuple[int, ...]

__all__ = [
    "DEATH_META",
    "answer_port_held",
    "answer_port_released",
    "arrived",
    "holder_died",
    "holders",
    "port_held",
    "port_released",
    "ports_dropped",
    "ports_recalled",
    "ports_sent",
]

#: Metadata of a message that reports the death of a process that could send to a channel.
DEATH_META = b"D"

# Holders of the ports of the channels of this process: port -> process -> number of copies.
holders: dict[int, dict[int, int]] = {}


# Addresses of ports in messages that have not arrived, by transit number and receiving process.
_coming: dict[tuple[int, int], Address] = {}
# Ports that arrived before the sender's report that it sent them; the oldest are evicted first.
_early: dict[tuple[int, int], None] = {}
_EARLY_LEN_MAX = 4096


def ports_sent(labels: list[Label], procs: list[int]) -> None:
    """Record that ports this process waits for are about to be sent to these processes."""
    engine = runtime().engine
    for serial, address in labels:
        for proc in procs:
            if (serial, proc) in _early:
                del _early[serial, proc]
                continue
            _coming[serial, proc] = tuple(address)
            if proc != engine.me:
                engine.watch(proc)


def ports_recalled(labels: list[Label], procs: list[int]) -> None:
    """Record that these ports were not sent."""
    for serial, _address in labels:
        for proc in procs:
            _coming.pop((serial, proc), None)


def ports_dropped(labels: list[Label], procs: list[int]) -> None:
    """Record that the message with these ports was dropped before it was unpickled."""
    reason = "the message that carried the port was dropped before it was received"
    body = FailureDetail(0, PROC_DIED, {"reason": reason}).encode()
    for serial, _address in labels:
        for proc in procs:
            address = _coming.pop((serial, proc), None)
            if address is not None:
                _lose(address, body)


def arrived(serial: int, proc: int) -> None:
    """Record that a process has unpickled a port."""
    if _coming.pop((serial, proc), None) is None:
        _early[serial, proc] = None
        while len(_early) > _EARLY_LEN_MAX:
            del _early[next(iter(_early))]


def port_held(proc: int, port: int, serial: int) -> None:
    """Record that a process has received a port of a channel of this process."""
    arrived(serial, proc)
    held = holders.get(port)
    if held is not None:
        held[proc] = held.get(proc, 0) + 1
        runtime().engine.watch(proc)


def port_released(proc: int, port: int) -> None:
    """Record that a process has released a port of a channel of this process."""
    held = holders.get(port)
    if held is not None and proc in held:
        held[proc] -= 1
        if not held[proc]:
            del held[proc]


# Response ports of this process's endpoints that other processes hold: process -> addresses.
_handed_on: dict[int, set[Address]] = {}


def answer_port_held(proc: int, address: Address, serial: int) -> None:
    """Record that a process has received the response port of an actor of this process."""
    arrived(serial, proc)
    _handed_on.setdefault(proc, set()).add(tuple(address))
    runtime().engine.watch(proc)


def answer_port_released(proc: int, address: Address) -> None:
    """Record that a process has replied on such a response port."""
    _handed_on.get(proc, set()).discard(tuple(address))


def holder_died(proc: int, body: bytes) -> None:
    """Notify every waiter for a port that a dead process held or was about to receive."""
    lost = set(_handed_on.pop(proc, ()))
    me = runtime().me
    lost |= {(me, port) for port, held in holders.copy().items() if held.pop(proc, 0)}
    for key in [key for key in list(_coming) if key[1] == proc]:
        lost.add(_address_of(_coming.pop(key)))
    for address in lost:
        _lose(address, body)


def _address_of(label: Address) -> Address:
    """Return the address in a label: two numbers for a channel, five for a response port."""
    return label[:2] if not any(label[2:]) else label


def _lose(label: Address, body: bytes) -> None:
    """Notify the waiter that one holder, or expected holder, of a port is lost."""
    engine = runtime().engine
    address = _address_of(label)
    if len(address) > 2:
        engine.reply(Message.at(*address), PROC_DIED, body)
    elif address[1] in holders:
        target = Targets([(engine.me, 0)])
        engine.send(POST, target, address[1], DEATH_META, body, [], 1 << 31, 0, None)
