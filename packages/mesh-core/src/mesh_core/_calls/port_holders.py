"""Who has, or is to get, the ports that this process waits for.

Kept in the process that waits: the one with the receiver of a channel, or the one whose endpoint
was called and has handed its response port on.
"""

from __future__ import annotations

from mesh_core._core import Message, Targets
from mesh_core._program.runtime import runtime
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

#: The meta of a message that says that one who could send to a channel is dead.
DEATH_META = b"D"

# Who holds ports of the channels of this process: port -> process -> how many.
holders: dict[int, dict[int, int]] = {}


# Addresses of ports in messages that have not arrived, by the number of the transit and the process
# that the message goes to.
_coming: dict[tuple[int, int], Address] = {}
# Ports that have arrived before their sender's word that it has sent them; the oldest go first.
_early: dict[tuple[int, int], None] = {}
_EARLY_LEN_MAX = 4096


def ports_sent(labels: list[Label], procs: list[int]) -> None:
    """Ports that this process waits for are about to be sent to others, or to itself."""
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
    """They were not sent."""
    for serial, _address in labels:
        for proc in procs:
            _coming.pop((serial, proc), None)


def ports_dropped(labels: list[Label], procs: list[int]) -> None:
    """Nobody will load the message that had them."""
    reason = "the message that carried the port was dropped before it was taken"
    body = FailureDetail(0, PROC_DIED, {"reason": reason}).encode()
    for serial, _address in labels:
        for proc in procs:
            address = _coming.pop((serial, proc), None)
            if address is not None:
                _lose(address, body)


def arrived(serial: int, proc: int) -> None:
    """A process has loaded a port."""
    if _coming.pop((serial, proc), None) is None:
        _early[serial, proc] = None
        while len(_early) > _EARLY_LEN_MAX:
            del _early[next(iter(_early))]


def port_held(proc: int, port: int, serial: int) -> None:
    """A process has got a port of a channel of ours."""
    arrived(serial, proc)
    held = holders.get(port)
    if held is not None:
        held[proc] = held.get(proc, 0) + 1
        runtime().engine.watch(proc)


def port_released(proc: int, port: int) -> None:
    """A process has let go of one."""
    held = holders.get(port)
    if held is not None and proc in held:
        held[proc] -= 1
        if not held[proc]:
            del held[proc]


# Who has been handed ports that callers of this process's endpoints wait for: process -> addresses.
_handed_on: dict[int, set[Address]] = {}


def answer_port_held(proc: int, address: Address, serial: int) -> None:
    """A process has got a port that an actor here was to answer on."""
    arrived(serial, proc)
    _handed_on.setdefault(proc, set()).add(tuple(address))
    runtime().engine.watch(proc)


def answer_port_released(proc: int, address: Address) -> None:
    """A process has answered on one."""
    _handed_on.get(proc, set()).discard(tuple(address))


def holder_died(proc: int, body: bytes) -> None:
    """A process has died: who waits for a port that it held, or was to get, is told."""
    lost = set(_handed_on.pop(proc, ()))
    me = runtime().me
    lost |= {(me, port) for port, held in list(holders.items()) if held.pop(proc, 0)}
    for key in [key for key in list(_coming) if key[1] == proc]:
        lost.add(_address_of(_coming.pop(key)))
    for address in lost:
        _lose(address, body)


def _address_of(label: Address) -> Address:
    """Gives the address in a label: of a channel two numbers, of an answer five."""
    return label[:2] if not any(label[2:]) else label


def _lose(label: Address, body: bytes) -> None:
    """Nothing comes any more from one that had, or was to get, a port: who waits is told."""
    engine = runtime().engine
    address = _address_of(label)
    if len(address) > 2:
        engine.answer(Message.at(*address), PROC_DIED, body)
    elif address[1] in holders:
        target = Targets([(engine.me, 0)])
        engine.send(POST, target, address[1], DEATH_META, body, [], 1 << 31, 0, True)
