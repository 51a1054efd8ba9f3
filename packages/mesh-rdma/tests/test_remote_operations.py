"""Remote operations whose reports are delivered only once."""

from typing import Any

import pytest

from mesh_rdma import RDMAPeerDied
from mesh_rdma._collectives.tree_node import SOURCE
from mesh_rdma._operations.remote_operation import HEAD, RemoteOperation, Report
from mesh_rdma._operations.server import Command, State
from mesh_rdma._requests.error_encoding import encode_error


class Owner:
    """Sends each prepared response once; afterwards, the operation is unknown."""

    def __init__(self, answers: dict[bytes, bytes]) -> None:
        self._answers = answers

    def exchange(self, name: str, question: bytes, timeout: float) -> bytes:
        what, _ = HEAD.unpack_from(question)
        return self._answers.pop(what, bytes([State.UNKNOWN]) + bytes(8))


class Orphan(RemoteOperation):
    """Sends another source to the owner as soon as the operation waits for one."""

    def on_report(self, report: Report) -> Report:
        return self.request(SOURCE) if report.state is State.WAITING else report


def said(state: State, extra: bytes = b"") -> bytes:
    return bytes([state]) + bytes(8) + extra


@pytest.mark.parametrize("error", [None, RDMAPeerDied("process 7 is gone")])
def test_an_outcome_delivered_with_another_reply_counts(error: Any) -> None:
    end = said(State.DONE) if error is None else said(State.FAILED, encode_error(error))
    owner: Any = Owner({Command.BEGIN: said(State.WAITING), SOURCE: end})
    operation = Orphan(owner, b"f", b"", 10.0)
    operation.start()
    assert operation.wait(10.0)
    if error is None:
        operation.outcome()
        return
    with pytest.raises(RDMAPeerDied):
        operation.outcome()
