"""What a worker is asked for is understood, or refused in words, whatever it is."""

import json
from typing import Any

import pytest

from mesh_core._attach_order import AttachOrder
from mesh_core._take_over_order import TakeOverOrder


def order() -> AttachOrder:
    config = {"heartbeat_s": 1.0, "mailbox_len_max": 7}
    return AttachOrder(b"j" * 16, b"t" * 32, 3, "someone@somewhere", 10.0, config, ["/srv"])


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(order().encode()), **fields}).encode()


def test_an_order_comes_out_as_it_went_in() -> None:
    again = AttachOrder.decode(order().encode())
    assert (again.job, again.token, again.host) == (b"j" * 16, b"t" * 32, 3)
    assert again.config == {"heartbeat_s": 1.0, "mailbox_len_max": 7}
    assert (again.owner, again.lease_s, again.path) == ("someone@somewhere", 10.0, ["/srv"])


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
        changed(hold_s=-1),
        changed(hold_s="inf"),
    ],
)
def test_anything_else_is_refused_in_words(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"no request|client speaks|hexadecimal"):
        AttachOrder.decode(body)


def test_a_name_that_no_terminal_shows_is_made_one_that_it_does() -> None:
    asked = AttachOrder.decode(changed(owner="a\x1b[2J\ud800" + "b" * 1000))
    assert asked.owner.startswith("a?[2J?bbb")
    assert len(asked.owner) == 300


def succession(**fields: Any) -> bytes:
    order = TakeOverOrder("claim", "someone@somewhere", b"j" * 16, 2, 10.0)
    return json.dumps({**json.loads(order.encode()), **fields}).encode()


def test_a_wish_to_take_over_comes_out_as_it_went_in() -> None:
    again = TakeOverOrder.decode(succession())
    assert again is not None
    assert (again.claim, again.owner, again.job) == ("claim", "someone@somewhere", b"j" * 16)
    assert (again.generation, again.lease_s) == (2, 10.0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 10_000,
        order().encode(),
        succession(take_over=2),
        succession(job="no hex"),
        succession(generation=-1),
        succession(generation=float("inf")),
        succession(lease_s=0),
        succession(lease_s=1e300),
        succession(lease_s="inf"),
        succession(owner=["a", "list"]),
    ],
)
def test_what_is_no_wish_to_take_over_is_not_taken_for_one(body: bytes) -> None:
    assert TakeOverOrder.decode(body) is None
