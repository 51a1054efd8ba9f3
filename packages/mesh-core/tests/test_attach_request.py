"""Every request to a worker is either understood or refused with a message."""

import json
import os
from typing import Any

import pytest

from mesh_core._hosts.attach_request import AttachRequest
from mesh_core._hosts.take_over_request import Refusal, TakeOverReply, TakeOverRequest


def order() -> AttachRequest:
    config = {"heartbeat_s": 1.0, "mailbox_len_max": 7}
    return AttachRequest(
        b"j" * 16,
        b"t" * 32,
        3,
        "someone@somewhere",
        10.0,
        config,
        ["/srv"],
        processes=b"\x00\xff",
    )


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(order().encode()), **fields}).encode()


def without(name: str) -> bytes:
    facts = json.loads(order().encode())
    del facts[name]
    return json.dumps(facts).encode()


@pytest.mark.parametrize(
    "config", [{"no_such_setting": 1}, {"heartbeat_s": "soon"}, {"mailbox_len_max": -1}]
)
def test_unsupported_settings_are_refused_with_an_explanation(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"apply the client's configuration.*install the same"):
        AttachRequest.decode(changed(config=config))


def test_an_attach_request_survives_a_round_trip() -> None:
    again = AttachRequest.decode(order().encode())
    assert (again.job, again.token, again.host) == (b"j" * 16, b"t" * 32, 3)
    assert again.config == {"heartbeat_s": 1.0, "mailbox_len_max": 7}
    assert (again.owner, again.lease_s, again.path) == ("someone@somewhere", 10.0, ["/srv"])
    assert (again.worker_id, again.processes) == ("", b"\x00\xff")


def test_a_process_list_too_large_for_a_request_is_omitted() -> None:
    request = order()
    request.processes = os.urandom(20_000)
    again = AttachRequest.decode(request.encode())
    assert (again.processes, again.path) == (b"", ["/srv"])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"null",
        b"[" * 10_000,
        b"{}",
        changed(version=2),
        changed(host=0),
        changed(host=2**32),
        changed(host=float("inf")),
        changed(lease_s=0),
        changed(lease_s=float("nan")),
        changed(lease_s=1e300),
        changed(lease_s="9" * 5000),
        changed(job="no hex"),
        changed(token="00"),
        changed(owner=["a", "list"]),
        changed(config=[]),
        changed(config={"call_timeout_s": {"a": "table"}}),
        changed(path=7),
        changed(epoch=-1),
        changed(epoch=1 << 12),
        changed(verb="steal"),
        changed(generation=1 << 12),
        changed(orphan_grace_s=-1),
        changed(orphan_grace_s="inf"),
        changed(orphan_grace_s=True),
        changed(version="1"),
        changed(host="3"),
        changed(host=3.5),
        changed(host=True),
        changed(epoch=0.0),
        changed(job="01 " * 16),
        changed(processes="abc"),
        changed(processes="AA AA"),
        changed(processes=["AAAA"]),
        changed(path="abc"),
        changed(path=[1]),
        changed(verb=["serve"]),
        changed(worker_id=None),
        *(without(name) for name in json.loads(order().encode())),
    ],
)
def test_a_malformed_attach_request_is_refused_with_an_explanation(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a request|client uses"):
        AttachRequest.decode(body)


def test_an_unprintable_owner_name_is_sanitized() -> None:
    asked = AttachRequest.decode(changed(owner="a\x1b[2J\ud800" + "b" * 1000))
    assert asked.owner.startswith("a?[2J?bbb")
    assert len(asked.owner) == 300


def failover(**fields: Any) -> bytes:
    order = TakeOverRequest("claim", "someone@somewhere", b"j" * 16, 2, 10.0)
    return json.dumps({**json.loads(order.encode()), **fields}).encode()


def test_a_take_over_request_survives_a_round_trip() -> None:
    again = TakeOverRequest.decode(failover())
    assert again is not None
    assert (again.claim, again.owner, again.job) == ("claim", "someone@somewhere", b"j" * 16)
    assert (again.generation, again.lease_s) == (2, 10.0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 10_000,
        order().encode(),
        failover(take_over=2),
        failover(job="no hex"),
        failover(generation=-1),
        failover(generation=float("inf")),
        failover(lease_s=0),
        failover(lease_s=1e300),
        failover(lease_s="inf"),
        failover(owner=["a", "list"]),
        failover(claim=7),
        failover(take_over=True),
        failover(generation="2"),
        failover(generation=1 << 12),
        failover(lease_s=True),
    ],
)
def test_other_messages_are_not_decoded_as_take_over_requests(body: bytes) -> None:
    assert TakeOverRequest.decode(body) is None


def grant(**fields: Any) -> bytes:
    given = TakeOverReply(b"j" * 16, b"t" * 32, 3, "w0", 1, 2)
    return json.dumps({**json.loads(given.encode()), **fields}).encode()


def test_a_take_over_reply_survives_a_round_trip() -> None:
    again = TakeOverReply.decode(grant())
    assert (again.job, again.token, again.host) == (b"j" * 16, b"t" * 32, 3)
    assert (again.host_name, again.epoch, again.generation) == ("w0", 1, 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        grant(job="00"),
        grant(token=None),
        grant(host=0),
        grant(host=True),
        grant(host_name=7),
        grant(epoch=-1),
        grant(epoch="1"),
        grant(generation=0),
        grant(generation=1 << 12),
    ],
)
def test_a_malformed_take_over_reply_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a reply of a Mesh worker"):
        TakeOverReply.decode(body)


def test_a_refusal_survives_a_round_trip_and_a_malformed_one_is_final() -> None:
    again = Refusal.decode(Refusal("no", is_final=False, is_rival=True).encode().encode())
    assert (again.why, again.is_final, again.is_rival) == ("no", False, True)
    for body in (b"busy", b"{}", b'{"why": "not yet", "is_final": 0}', b"\xff"):
        assert Refusal.decode(body).is_final
