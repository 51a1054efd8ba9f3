"""Serialized arguments and results: the body, out-of-band buffers, and unpicklable values."""

from __future__ import annotations

import array
import collections
import enum
import functools
import io
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import typing
import weakref
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_core._errors import MeshError, Unpicklable
from mesh_core._serialization.pickler import decode, encode, encode_value

THRESHOLD = 65_536
LARGE = 3 * THRESHOLD


def received(value: Any, threshold: int = THRESHOLD, *, writable: bool = True) -> Any:
    """Send a value; its buffers are in separate memory, as with a shared segment."""
    body, buffers = encode_value(value, threshold)
    kind = bytearray if writable else bytes
    return decode(body, [memoryview(kind(buffer)) for buffer in buffers])


def sizes(value: Any, threshold: int = THRESHOLD) -> tuple[bool, list[int]]:
    """Return whether the body is small, and the sizes of the buffers."""
    body, buffers = encode_value(value, threshold)
    return len(body) < 4_096, [buffer.nbytes for buffer in buffers]


# The tests below check plain values.


class Colour(enum.Enum):
    RED = 1


class Tuple(typing.NamedTuple):
    left: int
    right: str


@dataclass
class Record:
    name: str
    blob: bytes


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        -(2**70),
        1.5,
        True,
        2j,
        "text",
        "é\ud800\U0001f600",
        b"bytes",
        bytearray(b"array"),
        (),
        (1, (2, [3, {4: {5}}])),
        {"a": [1, 2], "b": None},
        frozenset({1, 2}),
        Colour.RED,
        Tuple(1, "b"),
        Record("a", b"b"),
        collections.OrderedDict(a=1),
        collections.Counter("aab"),
        array.array("d", [1.0, 2.0]),
        range(3),
        slice(1, 2),
        ...,
        NotImplemented,
        type(None),
        type(...),
        int,
        Colour,
        len,
        functools.reduce,
        ValueError,
        typing.Any,
        list[int],
    ],
    ids=repr,
)
@pytest.mark.parametrize("threshold", [1_024, THRESHOLD])
def test_a_value_arrives_unchanged(value: Any, threshold: int) -> None:
    other = received(value, threshold)
    assert type(other) is type(value)
    assert other == value


def test_call_arrives_as_positional_and_keyword_arguments() -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    calls = [((), {}), ((1, "a"), {}), ((), {"x": 1}), (([1],), {"x": {}, "y": None})]
    for args, kwargs in calls:
        assert decode(*encode(args, kwargs, THRESHOLD)) == (args, kwargs)


def test_plain_arguments_are_plain_pickle() -> None:
    body, buffers = encode((1, "a", b"b", None, 2.0, True), {"x": 3}, THRESHOLD)
    assert pickle.loads(body) == ((1, "a", b"b", None, 2.0, True), {"x": 3})
    assert buffers == []


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(max_size=3_000),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(plain, st.sampled_from([1, 50, 1_000, THRESHOLD]))
def test_any_plain_value_arrives_with_any_threshold(value: Any, threshold: int) -> None:
    assert received(value, threshold) == value


@given(st.lists(st.integers(0, 200_000), max_size=6), st.sampled_from([30_000, THRESHOLD, 10**9]))
def test_large_values_between_small_ones_arrive(lengths: list[int], threshold: int) -> None:
    value: list[list[Any]] = [
        [1, kind(length), {"k": "v" * (length % 7)}]
        for length in lengths
        for kind in (bytes, bytearray, "x".__mul__, "é".__mul__, np.zeros)
    ]
    other = received(value, threshold)
    for before, after in zip(value, other, strict=True):
        assert before[0] == after[0]
        assert type(before[1]) is type(after[1])
        assert np.array_equal(before[1], after[1])
        assert before[2] == after[2]


def test_an_object_sent_twice_keeps_its_identity() -> None:
    blob, items, zeros = bytes(LARGE), [1], np.zeros(LARGE)
    one, two, three, four, five, six = received([blob, blob, items, items, zeros, zeros])
    assert one is two
    assert three is four
    assert five is six


def test_a_reference_cycle_is_preserved() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    other = received(cycle)
    assert other[1] is other


# The tests below check out-of-band buffers.


@pytest.mark.parametrize(
    "value",
    [
        bytes(LARGE),
        bytearray(LARGE),
        "x" * LARGE,
        [bytes(LARGE)],
        {"a": {"b": [(bytes(LARGE),)]}},
        Record("a", bytes(LARGE)),
        np.zeros(LARGE, np.uint8),
        Record("a", np.zeros(LARGE, np.uint8)),  # type: ignore[arg-type]
        memoryview(bytes(LARGE)),
        pickle.PickleBuffer(bytes(LARGE)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_large_value_is_sent_out_of_band_at_any_depth(value: Any) -> None:
    assert sizes(value) == (True, [LARGE])


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_large_bytes_are_not_copied(kind: type) -> None:
    value = kind(LARGE)
    _, (buffer,) = encode_value({"a": [value]}, THRESHOLD)
    assert buffer.obj is value


def test_an_array_is_not_copied() -> None:
    value = np.zeros(LARGE, np.uint8)
    _, (buffer,) = encode((1, [value]), {}, THRESHOLD)
    value[5] = 7
    assert buffer[5] == 7


def test_buffers_are_flat_bytes() -> None:
    value = [np.zeros((100, 1_000)), np.zeros((1_000, 100)).T, bytes(LARGE), "é" * LARGE]
    _, buffers = encode_value(value, THRESHOLD)
    assert len(buffers) == 4
    assert all((view.ndim, view.format, view.c_contiguous) == (1, "B", True) for view in buffers)


def test_many_small_values_are_sent_in_one_out_of_band_buffer() -> None:
    small, (length,) = sizes(list(range(100_000)))
    assert small
    assert length > 100_000
    assert received(list(range(100_000))) == list(range(100_000))


def test_small_values_stay_in_the_body() -> None:
    value = [b"x" * 1_000, "y" * 1_000, np.zeros(10), bytearray(1_000)]
    assert sizes(value)[1] == []


def test_the_threshold_decides_which_values_are_sent_out_of_band() -> None:
    assert sizes(np.zeros(4_000, np.uint8), 4_000)[1] == [4_000]
    assert sizes(np.zeros(4_000, np.uint8), 5_000)[1] == []


def test_a_message_with_hundreds_of_large_values_fits_in_one_frame() -> None:
    value: list[Any] = [np.full(70_000, n % 251, np.uint8) for n in range(300)]
    value += [bytes([n % 251]) * 70_000 for n in range(300)]
    body, buffers = encode_value(value, THRESHOLD)
    assert len(buffers) <= 255
    assert len(body) < 100_000
    assert all(np.array_equal(a, b) for a, b in zip(value, decode(body, buffers), strict=True))


def test_a_body_without_its_buffers_is_refused() -> None:
    body, _ = encode_value(bytes(LARGE), THRESHOLD)
    with pytest.raises(ValueError, match="pass the body with its own buffers"):
        decode(body, [])
    with pytest.raises(ValueError, match="not created by encode"):
        decode(b"\x07nonsense")


def test_a_body_can_be_a_memoryview() -> None:
    for value in (1, [bytes(LARGE), 2]):
        body, buffers = encode_value(value, THRESHOLD)
        assert decode(memoryview(body), buffers) == value


# The tests below check arrays.


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (300, 400), (2, 0, 3)])
@pytest.mark.parametrize(
    "dtype", ["?", "i1", "u2", "f2", "f4", "f8", "c16", ">f4", "M8[ns]", "m8[s]", "S5", "U3", "O"]
)
def test_array_of_any_type_and_shape_arrives(shape: tuple[int, ...], dtype: str) -> None:
    value = (np.arange(int(np.prod(shape))) % 100).reshape(shape).astype(dtype)
    other = received(value)
    assert (other.dtype, other.shape) == (value.dtype, value.shape)
    assert np.array_equal(other, value)


def test_structured_and_masked_arrays_and_scalars_arrive() -> None:
    records = np.zeros(30_000, [("a", "i4"), ("b", "f8", (2,))])
    assert np.array_equal(received(records), records)
    masked = np.ma.masked_array(np.arange(4), [False, True, False, True])
    assert received(masked).mask.tolist() == [False, True, False, True]
    assert type(received(np.float32(1.5))) is np.float32


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::2],
        lambda a: a[:, ::-1],
        lambda a: a.T,
        lambda a: a[:, :, None].transpose(2, 1, 0),
        np.asfortranarray,
        lambda a: np.broadcast_to(a[0], a.shape),
    ],
)
@pytest.mark.parametrize("size", [10, 400])
def test_an_array_view_arrives_with_its_elements(view: Any, size: int) -> None:
    value = view(np.arange(size * size).reshape(size, size))
    other = received(value)
    assert np.array_equal(other, value)
    assert other.flags.f_contiguous or not value.flags.f_contiguous


@pytest.mark.parametrize("length", [10, 100_000])
def test_writes_to_a_received_array_are_invisible_to_the_sender(length: int) -> None:
    value = np.zeros(length)
    other = received(value)
    other[0] = 1
    assert (other[0], value[0]) == (1, 0)


def test_large_array_shares_memory_with_the_buffer() -> None:
    body, buffers = encode_value(np.zeros(LARGE, np.uint8), THRESHOLD)
    memory = bytearray(buffers[0])
    other = decode(body, [memoryview(memory)])
    memory[3] = 9
    assert other[3] == 9


def test_an_array_on_read_only_memory_is_read_only() -> None:
    assert not received(np.zeros(LARGE), writable=False).flags.writeable


def test_a_memoryview_arrives_with_the_same_format_and_shape() -> None:
    matrix: Any = np.arange(12.0).reshape(3, 4)
    for value in (memoryview(b"abc"), memoryview(matrix), memoryview(b"")):
        other = received(value)
        assert type(other) is memoryview
        assert other == value
        assert (other.format, other.shape) == (value.format, value.shape)
    assert received(memoryview(b"abcdef")[::2]) == b"ace"


# The tests below check functions and classes.


def test_importable_objects_are_pickled_by_reference() -> None:
    body, _ = encode_value(
        [Record, test_importable_objects_are_pickled_by_reference, np.mean], THRESHOLD
    )
    assert len(body) < 250
    assert received(Record) is Record


def test_local_functions_are_pickled_with_their_closures() -> None:
    factor = 3
    assert received(lambda x: x * factor)(5) == 15

    def recursive(n: int) -> int:
        return n and n + recursive(n - 1)

    assert received(recursive)(4) == 10


def test_functions_sent_together_share_their_globals() -> None:
    space: dict[str, Any] = {"__name__": "__main__", "total": 0}
    exec("def add(n):\n global total\n total += n\ndef read():\n return total\n", space)
    add, read = received([space["add"], space["read"]])
    add(5)
    assert read() == 5
    assert space["total"] == 0


def test_code_pickled_by_value_keeps_its_file() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    source = "def outer():\n def inner():\n  return 1\n return inner\n"
    exec(compile(source, "/job/train.py", "exec"), space)
    outer = received(space["outer"])
    assert outer is not space["outer"]
    assert outer.__code__.co_filename == outer().__code__.co_filename == "/job/train.py"


def test_a_local_class_pickled_by_value_is_identical_when_it_returns() -> None:
    class Local:
        def __init__(self, x: int) -> None:
            self.x = x

        def double(self) -> int:
            return self.x * 2

    other = received(Local(4))
    assert other.double() == 8
    assert type(other) is Local
    assert received([Local, Local(1)])[0] is Local


def test_methods_partials_and_descriptors_can_be_pickled() -> None:
    class Local:
        x = 1

        def method(self) -> int:
            return self.x

        @property
        def twice(self) -> int:
            return self.x * 2

        @staticmethod
        def three() -> int:
            return 3

        @classmethod
        def four(cls) -> int:
            return cls.x * 4

    assert received(Local().method)() == 1
    assert received(Local.four)() == 4
    assert received(functools.partial(Local().method))() == 1
    assert received([1, 2].append)(3) is None
    other = received(Local)
    assert (other().twice, other.three()) == (2, 3)


def test_objects_that_plain_pickle_does_not_support_can_be_sent() -> None:
    import os.path

    assert received(os.path) is os.path
    assert list(received({1: 2}.keys())) == [1]
    assert list(received(collections.OrderedDict(a=1).values())) == [1]
    assert received(weakref.WeakSet()) is not None
    assert received(io.StringIO("a")).read() == "a"
    variable = typing.TypeVar("variable", bound=int)
    assert received(variable).__bound__ is int
    assert received(type(test_importable_objects_are_pickled_by_reference)) is type(lambda: 0)


def test_a_module_registered_with_cloudpickle_is_pickled_by_value() -> None:
    import textwrap as module

    assert b"co_code" not in encode_value(module.dedent, THRESHOLD)[0]
    cloudpickle.register_pickle_by_value(module)
    try:
        other = received(module.dedent)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert other is not module.dedent
    assert other("  a") == "a"


def run_script(source: str) -> str:
    path = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    command = [sys.executable, "-c", textwrap.dedent(source)]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=path).stdout


def test_definitions_of_the_main_script_load_in_another_interpreter() -> None:
    source = """
        import sys
        from typing import Generic, TypeVar
        from mesh_core._serialization.pickler import encode_value
        T = TypeVar("T")
        class Batch(Generic[T]):
            limit = 3
            def __init__(self, items): self.items = items
            def first(self): return helper(self.items)[: self.limit]
        def helper(items): return sorted(items)
        body, _ = encode_value((Batch([4, 3, 2, 1]), helper, T), 65536)
        print(body.hex())
    """
    batch, helper, variable = decode(bytes.fromhex(run_script(source)))
    assert batch.first() == [1, 2, 3]
    assert helper("ba") == ["a", "b"]
    assert variable.__name__ == "T"


def test_large_modules_are_imported_only_when_needed() -> None:
    source = """
        import sys
        from mesh_core._serialization import pickler as _pickle
        _pickle.decode(*_pickle.encode((1, [2], {"a": b"b"}, Exception("e"), print), {}, 65536))
        print({"cloudpickle", "numpy", "dataclasses", "inspect"} & set(sys.modules))
    """
    assert run_script(source) == "set()\n"


# The tests below check values that cannot be pickled.


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def method(self) -> None: ...


class Slotted:
    __slots__ = ("inner",)

    inner: Any


class RaisesInReduce:
    def __reduce__(self) -> Any:
        raise ValueError("not this one")


def slotted(inner: Any) -> Slotted:
    value = Slotted()
    value.inner = inner
    return value


LOCK = threading.Lock()


def closes_over(value: Any) -> Any:
    return lambda: value


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ((1, LOCK), {}, "argument 'second'"),
        ((1, 2, LOCK), {}, "argument 2"),
        ((), {"batch": [0, 1, Holder(lock=LOCK)]}, "argument 'batch'[2].lock"),
        (({"a": (1, LOCK)},), {}, "argument 'first'['a'][1]"),
        ((slotted([LOCK]),), {}, "argument 'first'.inner[0]"),
        ((closes_over(LOCK),), {}, "argument 'first' (its variable 'value')"),
        ((Holder(x=1, y={"z": (n for n in "a")}),), {}, "argument 'first'.y['z']"),
        ((Holder(lock=LOCK).method,), {}, "argument 'first'.__self__.lock"),
        (([RaisesInReduce()],), {}, "argument 'first'[0]"),
        ((1, np.array([1, LOCK], dtype=object)), {}, "argument 'second'"),
    ],
)
def test_the_error_names_the_path_to_the_unpicklable_value(
    args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> None:
    with pytest.raises(Unpicklable) as caught:
        encode(args, kwargs, THRESHOLD, ("first", "second"))
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: cannot pickle")
    assert isinstance(caught.value, (MeshError, TypeError))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_error_keeps_the_reason_and_says_what_to_do() -> None:
    with pytest.raises(Unpicklable, match=re.escape("value[0]: cannot pickle '_thread.lock'")) as c:
        encode_value([LOCK], THRESHOLD)
    assert str(c.value).endswith("create it where it is used")
    with pytest.raises(Unpicklable, match="cannot pickle it: ValueError: not this one"):
        encode_value(RaisesInReduce(), THRESHOLD)


def test_a_value_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Unpicklable, match="nested too deeply"):
        encode((deep,), {}, THRESHOLD)


def test_large_values_next_to_an_unpicklable_one_do_not_affect_the_path() -> None:
    with pytest.raises(Unpicklable, match=r"argument 'b'\[1\]"):
        encode((), {"a": bytes(LARGE), "b": [np.zeros(LARGE), LOCK]}, THRESHOLD)


def test_a_keyboard_interrupt_is_propagated() -> None:
    class Interrupts:
        def __reduce__(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_value(Interrupts(), THRESHOLD)


def test_the_error_of_the_receiver_names_a_missing_module() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        decode(b"\x80\x05cno_such_module\nname\n.")
