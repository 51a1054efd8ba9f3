"""Tracking of ports in messages in transit, so that waiters learn of dropped messages.

A pickled port carries a label: bytes that can be found without unpickling. The sender of a message
informs the process that waits for the port about the receiving processes. Each receiver reports the
arrival of the port. A receiver that dies before it reports the arrival, or that drops the message,
will never send on the port.
"""

from __future__ import annotations

import os
from itertools import count
from struct import Struct

from mesh_core._calls.port_holders import ports_dropped, ports_recalled, ports_sent
from mesh_core._core import PORT_MARK
from mesh_core._runtime.runtime import runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._core import Message, Targets

__all__ = ["Label", "drop_ports", "labelled", "note_ports", "recall_ports"]

#: The transit number, then the address of the port: five numbers, starting with the process that
#: waits for the port.
_LABEL = Struct("<6Q")
#: Handlers of the agent's methods, for direct calls within this process.
_HERE = {
    "ports_sent": ports_sent,
    "ports_recalled": ports_recalled,
    "ports_dropped": ports_dropped,
}
_serials = count(int.from_bytes(os.urandom(7), "little"))

Label = tuple[int, tuple[int, ...]]


def labelled(address: Sequence[int]) -> bytes:
    """Return a new label for a port, to be pickled with it.

    Args:
        address: Up to five numbers; the first is the process that waits for messages to the port.
    """
    numbers = [*address, 0, 0, 0, 0, 0][:5]
    return PORT_MARK + _LABEL.pack(next(_serials), *numbers)


def serial_of(label: bytes) -> int:
    """Return the transit number of a label."""
    serial: int = _LABEL.unpack_from(label, len(PORT_MARK))[0]
    return serial


def labels_in(body: bytes) -> list[Label]:
    """Find the labels in the body of a message."""
    found, at = [], body.find(PORT_MARK)
    while at >= 0:
        at += len(PORT_MARK)
        if at + _LABEL.size <= len(body):
            serial, *address = _LABEL.unpack_from(body, at)
            found.append((serial, tuple(address)))
        at = body.find(PORT_MARK, at)
    return found


def note_ports(body: bytes, targets: Targets | Sequence[tuple[int, int]]) -> None:
    """Notify the waiters for the ports in a message of the processes it is about to be sent to."""
    if PORT_MARK in body:
        _tell("ports_sent", body, _procs_of(targets))


def recall_ports(body: bytes, targets: Targets | Sequence[tuple[int, int]]) -> None:
    """Revoke `note_ports`, because the message was not sent."""
    if PORT_MARK in body:
        _tell("ports_recalled", body, _procs_of(targets))


def _procs_of(targets: Targets | Sequence[tuple[int, int]]) -> list[int]:
    return sorted({targets[at][0] for at in range(len(targets))})


def drop_ports(message: Message) -> None:
    """Notify the waiters for the ports in a message that it was dropped."""
    if PORT_MARK in message.body:
        _tell("ports_dropped", message.body, [message.address()[0]])


def _tell(method: str, body: bytes, procs: list[int]) -> None:
    """Pass the labels of a message to the processes that wait for their ports."""
    current = runtime()
    waiting: dict[int, list[Label]] = {}
    for serial, address in labels_in(body):
        waiting.setdefault(address[0], []).append((serial, address))
    for proc, labels in waiting.items():
        if proc == current.me:
            # Call the handler directly, because the next message may arrive before the agent runs.
            _HERE[method](labels, procs)
        else:
            current.tell_agent(proc, method, labels, procs)
