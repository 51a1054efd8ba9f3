"""The text of payloads in a case, which is rendered without decoding anything."""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
import pytest
from case_samples import LARGE, MakesMarker, arguments, value
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_core import Actor
from mesh_core._cases import render
from mesh_core._cases.case import Omitted
from mesh_core._cases.escape import escape, format_len
from mesh_core._cases.render import VALUE_LEN_MAX, Renderer
from mesh_core._meshes.spawn_request import SpawnRequest
from mesh_core._serialization.remote_error import encode_exception

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


class Point:
    def __init__(self) -> None:
        self.x = 1


class Worker(Actor):
    pass


class WithPersistentId(pickle.Pickler):
    def persistent_id(self, one: object) -> object:
        return "id" if type(one) is Point else None


def local_class() -> type:
    class Local:
        pass

    return Local


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.integers(0, 9), inner, max_size=3)
        | st.sets(st.integers(0, 9), max_size=1)
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(one=plain, protocol=st.integers(2, 5))
def test_plain_data_is_rendered_like_its_repr(one: object, protocol: int) -> None:
    expected = repr(one)
    is_short = len(expected) < VALUE_LEN_MAX and expected.isascii()
    # Protocol 2 has no opcode for bytes and sets, and encodes them as calls.
    if is_short and (protocol > 3 or not any(one in expected for one in ("b'", 'b"', "{"))):
        text = Renderer().value((pickle.dumps(one, protocol),))
        assert text == expected or "..." in text


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (np.zeros((1024, 1024), "f4"), "<numpy.ndarray [1024, 1024], 4 MiB>"),
        (np.zeros(3), "<numpy.ndarray [3]>"),
        (np.asfortranarray(np.zeros((256, 2))), "<numpy.ndarray [256, 2], 4 KiB>"),
        (np.array(["a", "b"], object), "<numpy.ndarray ...>"),
        (LARGE, "<bytes, 75 KiB>"),
        ("x" * 70_000, "<str, 68.4 KiB>"),
        ("x" * 200, f"'{'x' * 97}...'"),
        (b"x" * 200, "<bytes, 200 bytes>"),
        (bytearray(b"ab"), "b'ab'"),
        (1 << 70, "1180591620717411303424"),
        (-(1 << 5_000), "<int, 5001 bits>"),
        (1 << 50_000, "<int, 6.1 KiB>"),
        (1.5j, "<builtins.complex ...>"),
        (frozenset({1}), "frozenset({1})"),
        (set(), "set()"),
        (PurePosixPath("a/b"), "<pathlib.PurePosixPath ...>"),
        (OrderedDict(a=1), "<collections.OrderedDict ...>"),
        (OrderedDict(w=np.zeros(1 << 17)), "<collections.OrderedDict, 1 MiB>"),
        (Point, "<test_case_render.Point>"),
        (Point(), "<test_case_render.Point ...>"),
        (print, "<builtins.print>"),
        (local_class(), "<class, pickled by value>"),
        (local_class()(), "<object of a class that is pickled by value>"),
    ],
    ids=lambda one: one[:40] if isinstance(one, str) else type(one).__name__,
)
def test_other_values_are_rendered_as_placeholders(one: object, text: str) -> None:
    if isinstance(one, OrderedDict | PurePosixPath) and sys.version_info >= (3, 12):
        text = text.replace("pathlib.", type(one).__module__ + ".")
    assert Renderer().value(value(one)) == text


def test_arguments_are_rendered_like_a_call() -> None:
    payloads = arguments(1, LARGE, np.zeros(1_000), a={"b": [None]}, c=LARGE)
    assert len(payloads) > 2, "the body is a splice"
    assert payloads[0][0] == 0
    text = "1, <bytes, 75 KiB>, <numpy.ndarray [1000], 7.8 KiB>, a={'b': [None]}, c=<bytes, 75 KiB>"
    assert Renderer().arguments(payloads) == text


def test_only_the_arguments_of_a_constructor_are_rendered() -> None:
    region: Any = None
    request = SpawnRequest(
        Worker, (1, "x"), {"lr": 0.1}, "workers", region, region, (1, 2), "root", 10
    )
    assert Renderer().constructor_arguments(value(request)) == "1, 'x', lr=0.1"


def test_the_traceback_of_an_exception_is_escaped() -> None:
    try:
        raise ValueError("x" * 1_000 + " \x1b[2J value")
    except ValueError as error:
        encoded = encode_exception(error)
    assert len(encoded) > 1_024, "longer than other texts may be"
    lines = (Renderer().traceback((encoded,)) or "").split("\n")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].endswith("xx \\x1b[2J value")


class TestOmitted:
    def test_an_omitted_body_is_rendered_as_its_length_and_the_reason(self) -> None:
        body = Omitted(3 << 20, "budget")
        assert Renderer().value((body,)) == "<3 MiB, not recorded: budget of the recording>"
        assert Renderer().arguments((Omitted(10, "redacted"),)) == (
            "<10 bytes, not recorded: redacted>"
        )

    def test_an_omitted_piece_does_not_hide_the_others(self) -> None:
        body, *pieces = arguments(1, LARGE, "x", LARGE)
        omitted = [Omitted(len(piece), "budget") for piece in pieces]
        text = "1, <bytes, 75 KiB>, 'x', <bytes, 75 KiB>"
        assert Renderer().arguments((body, *omitted)) == text

    def test_an_omitted_buffer_is_rendered_with_its_length(self) -> None:
        body, buffer = value(np.zeros(1_000))
        text = "<numpy.ndarray [1000], 7.8 KiB>"
        assert Renderer().value((body, Omitted(len(buffer), "budget"))) == text


class TestHostile:
    def test_rendering_imports_and_calls_nothing(self, tmp_path: Path) -> None:
        marker = tmp_path / "marker"
        payloads = value((MakesMarker(marker), b"cantigravity\nhello\n."))
        # The module of `open` is `io` or `_io`.
        assert "io.open ...>, b'" in Renderer().value(payloads)
        assert Renderer().value((b"cantigravity\nhello\n.",)) == "<antigravity.hello>"
        assert not marker.exists()
        assert "antigravity" not in sys.modules

    def test_persistent_ids_are_not_resolved(self) -> None:
        import io

        target = io.BytesIO()
        WithPersistentId(target, 5).dump([Point()])
        assert Renderer().value((target.getvalue(),)) == "[<persistent object>]"

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b".",
            b"\x80\x05",
            b"\x80\x05.",
            b"(",
            b"0.",
            b"\x80\x05K\x01\x94h\x07.",
            b"\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
            b"\x8b\xff\xff\xff\xff.",
            b"I" + b"9" * 4_000 + b"0" * 4_000 + b"\n.",
            b"S'\\q'\n.",
            b"\x80\x05\x97.",
            b"\x00",
            b"\x00\xff\xff\xff\xff",
            b"\x00\x01\x00\x00\x00" + b"\xff" * 8,
            b"nonsense",
            b"\xff" * 312,
        ],
        ids=range(17),
    )
    def test_an_invalid_pickle_is_rendered_as_its_length(self, body: bytes) -> None:
        assert Renderer().value((body,)) == f"<{format_len(len(body))}>"

    def test_recursive_values_are_rendered_to_a_limited_depth(self) -> None:
        one: list[Any] = [1]
        one.append(one)
        assert Renderer().value(value(one)).count("[1, ") == 8

    def test_nested_shared_values_have_a_bounded_text(self) -> None:
        one: Any = "x"
        for _ in range(60):
            one = [one] * 10
        assert len(Renderer().value((pickle.dumps(one, 5),))) < 2 * VALUE_LEN_MAX
        assert len(Renderer().value((pickle.dumps(tuple([one] * 100), 5),))) < 2 * VALUE_LEN_MAX

    def test_deeply_nested_values_are_rendered_or_shown_as_a_length(self) -> None:
        body = b"\x80\x05" + b"]" * 60_000 + b"a" * 59_999 + b"."
        assert "[[[" in Renderer().value((body[:40_002] + b"a" * 39_999 + b".",))
        assert Renderer().value((body,)) == f"<{format_len(len(body))}>"

    def test_the_amount_of_work_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        many = (pickle.dumps(list(range(60_000)), 5),)
        assert Renderer().value(many) == f"<{format_len(len(many[0]))}>"
        # The limit for all payloads together.
        monkeypatch.setattr(render, "_ALL_STREAMS_LEN_MAX", 50)
        renderer = Renderer()
        assert renderer.value(value([1, 2])) == "[1, 2]"
        body = value([3, 4, 5, 6])
        assert [renderer.value(body) for _ in range(5)][-1] == f"<{format_len(len(body[0]))}>"

    @settings(max_examples=200)
    @given(
        body=st.lists(
            st.sampled_from(
                [bytes([code]) for code in b"(.012FGIJKLMNQRTUVX]abcdeghijloqrstu}\x80\x81\x82\x85"]
                + [bytes([code]) for code in range(0x86, 0x99)]
                + [b"K\x01", b"\x8c\x01a", b"ca\nb\n", b"h\x00", b"q\x00", b"\n", b"\xff"]
            ),
            max_size=30,
        ),
        is_spliced=st.booleans(),
    )
    def test_no_sequence_of_opcodes_raises(self, body: list[bytes], is_spliced: bool) -> None:
        stream = b"".join(body) + b"."
        payloads: tuple[bytes, ...] = (stream, b"buffer")
        if is_spliced:
            head = b"\x00\x01\x00\x00\x00" + (len(stream) // 2).to_bytes(8, "little")
            payloads = (head + stream, b"piece", b"buffer")
        for method in (Renderer().value, Renderer().arguments, Renderer().constructor_arguments):
            text = method(payloads)
            assert text.isprintable()
            assert len(text) < 2 * VALUE_LEN_MAX
        Renderer().traceback(payloads)


def test_terminal_control_characters_are_escaped() -> None:
    text = "a\x1b[31m\r\n\x9b\u202e\u2028\ud800\U000e0001é"
    assert escape(text) == "a\\x1b[31m\\r\\n\\x9b\\u202e\\u2028\\ud800\\U000e0001é"


def test_lengths_have_units() -> None:
    lengths = [0, 1023, 1024, 1536, 1 << 20, (1 << 30) + 1, 1 << 60]
    expected = ["0 bytes", "1023 bytes", "1 KiB", "1.5 KiB", "1 MiB", "1 GiB", "1048576 TiB"]
    assert list(map(format_len, lengths)) == expected
