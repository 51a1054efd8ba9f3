"""Fields that are removed from encoded messages."""

from __future__ import annotations

import datetime
from collections import OrderedDict, defaultdict
from typing import Any

import pytest

from mesh_core._recording.redacted import Redacted
from mesh_core._recording.redaction import Redaction
from mesh_core._serialization.pickler import decode, encode, encode_value
from mesh_core.recording import ValueRedacted

SECRET = "hunter2"
THRESHOLD = 1_024


class Holder:
    """An object with an attribute."""

    def __init__(self, value: object) -> None:
        self.value = value


def redacted(*args: Any, parameters: tuple[str, ...] = (), **kwargs: Any) -> Any:
    """Return the arguments of a call as they are recorded, and check that they have no secret."""
    redaction = Redaction(["password", "*Token*"])
    body, buffers = encode(args, kwargs, THRESHOLD)
    payloads = redaction.arguments([body, *buffers], parameters)
    assert not any(SECRET.encode() in bytes(memoryview(one)) for one in payloads)
    return decode(bytes(payloads[0]), payloads[1:])


def is_redacted(value: object) -> bool:
    return type(value) is Redacted


def test_keyword_arguments_are_redacted() -> None:
    args, kwargs = redacted("bob", password=SECRET, my_token=[SECRET, {"a": SECRET}], rest="bob")
    assert (args, kwargs["rest"]) == (("bob",), "bob")
    assert is_redacted(kwargs["password"])
    assert is_redacted(kwargs["my_token"])


def test_positional_arguments_are_redacted_by_the_names_of_parameters() -> None:
    args, _ = redacted("bob", SECRET, 3, parameters=("user", "PASSWORD"))
    assert args[::2] == ("bob", 3)
    assert is_redacted(args[1])


def test_keys_at_any_depth_are_redacted() -> None:
    nested = [({"a": {"password": SECRET, "b": 1}},)]
    ordered = OrderedDict(token=SECRET, c=2)
    default = defaultdict(list, {"token": [SECRET], "d": [3]})
    (first, second, third), _ = redacted(nested, ordered, default)
    assert first[0][0]["a"]["b"] == 1
    assert (second["c"], third["d"]) == (2, [3])
    found = (first[0][0]["a"]["password"], second["token"], third["token"])
    assert all(map(is_redacted, found))


def test_objects_shared_with_other_fields_are_kept() -> None:
    # The pickle of the second date refers to the class in the pickle of the first date.
    shared = [1, [2]]
    days = [datetime.date(2026, 1, day) for day in (1, 2)]
    secret = {"day": days[0], "shared": shared, "text": SECRET, "holder": Holder(1)}
    (got, other, holder), _ = redacted(
        {"password": secret, "after": days[1]}, [shared, days[0]], Holder(2)
    )
    assert is_redacted(got["password"])
    assert got["after"] == days[1]
    assert other == [shared, days[0]]
    assert holder.value == 2


def test_large_values_and_buffers_are_redacted() -> None:
    numpy = pytest.importorskip("numpy")
    secret = bytearray((SECRET * 1_000).encode())
    kept = numpy.arange(1_000)
    _, kwargs = redacted(
        password=numpy.frombuffer(secret, numpy.uint8),
        kept=kept,
        token=SECRET * 1_000,
        text="x" * 5_000,
    )
    assert is_redacted(kwargs["password"])
    assert is_redacted(kwargs["token"])
    assert (kwargs["kept"] == kept).all()
    assert kwargs["text"] == "x" * 5_000


def test_many_values_are_redacted() -> None:
    args, _ = redacted(
        {f"key{index}": index for index in range(3_000)},
        {"token": [f"{SECRET}{index}" for index in range(3_000)], "after": "key7"},
    )
    assert args[0]["key2999"] == 2999
    assert is_redacted(args[1]["token"])
    assert args[1]["after"] == "key7"


def test_a_message_that_cannot_be_parsed_is_redacted_entirely() -> None:
    # A tuple that contains itself.
    cycle: list[Any] = [SECRET]
    cycle.append((cycle,))
    assert is_redacted(redacted({"password": cycle[1]}))


def test_a_message_without_matching_fields_is_unchanged() -> None:
    redaction = Redaction(["password"])
    body, buffers = encode((Holder("password"), {"x": 1}), {"y": b"z" * 5_000}, THRESHOLD)
    payloads: list[Any] = [body, *buffers]
    assert redaction.arguments(payloads, ("a",)) == payloads


def test_attributes_are_not_redacted() -> None:
    redaction = Redaction(["value"])
    body, _ = encode((Holder("kept"),), {}, THRESHOLD)
    (payload,) = redaction.arguments([body], ())
    assert decode(bytes(payload))[0][0].value == "kept"


def test_results_are_redacted() -> None:
    body, _ = encode_value({"password": SECRET, "user": "bob"}, THRESHOLD)
    (payload,) = Redaction(["pass*"]).value([body])
    found = decode(bytes(payload))
    assert found["user"] == "bob"
    assert is_redacted(found["password"])


def test_a_redacted_value_can_be_passed_on_but_not_used() -> None:
    value: Any = Redacted("password")
    body, buffers = encode_value([value], THRESHOLD)
    assert is_redacted(decode(body, buffers)[0])
    assert f"{value} {[value]}" == "<redacted> [<redacted>]"
    for use in (bool, len, iter, hash, lambda one: one + "x", lambda one: one == "x"):
        with pytest.raises(ValueRedacted, match="'password' is not in the recording"):
            use(value)
    with pytest.raises(ValueRedacted, match="record_redact"):
        value.encode()
