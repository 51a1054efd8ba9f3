"""Exceptions in actors as their callers receive them."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import textwrap
from contextlib import contextmanager
from subprocess import run
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import Actor, endpoint
from mesh_core._errors import (
    ActorError,
    ConfigError,
    MailboxFull,
    MeshError,
    ProcDied,
    Where,
)
from mesh_core._serialization.remote_error import as_actor_error, decode_exception, encode_exception

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh

from hostile_exceptions import (
    PLACE,
    Abstract,
    BadGetattribute,
    BadReduce,
    BadStr,
    Frozen,
    Guarded,
    KeywordOnly,
    NeedsMore,
    NoSubclasses,
    OwnFields,
    OwnNew,
    OwnReduce,
    Refusing,
    Slotted,
    TwoBases,
    WithDefault,
    ghost,
    printed,
    sent,
)


def test_remote_exception_is_caught_by_its_own_type_and_as_actor_error() -> None:
    for wanted in (ValueError, ActorError, MeshError, Exception):
        with pytest.raises(wanted, match="bad batch"):
            raise sent(ValueError("bad batch"))
    error = sent(ValueError("bad batch", 7), **PLACE)
    assert error.args == ("bad batch", 7)
    assert type(error.exception) is ValueError
    assert error.exception.args == error.args
    assert {name: getattr(error, name) for name in PLACE} == PLACE
    assert error.message == "('bad batch', 7)"


def test_the_text_shows_the_remote_traceback_and_location() -> None:
    text = printed(sent(ValueError("bad batch"), **PLACE))
    _, _, ours = text.partition("mesh_core.ActorError[ValueError]: bad batch\n")
    assert ours.startswith(
        "  raised by actor 'Trainer' of mesh 'trainers', in endpoint 'step', "
        "rank 3 (hosts=1, gpus=1), host node1, proc p3, pid 4242:\n"
        "    Traceback (most recent call last):\n"
    )
    assert "in sent\n        raise exception\n" in ours
    assert ours.endswith("    ValueError: bad batch\n")


def test_same_type_arrives_as_the_same_class() -> None:
    assert type(sent(ValueError(1))) is type(sent(ValueError(2)))


@pytest.mark.parametrize(
    ("exception", "fields"),
    [
        (NeedsMore("node1", 80), {"host": "node1", "port": 80}),
        (WithDefault("a"), {"name": "a", "args": ("a!",)}),
        (KeywordOnly(key="k"), {"key": "k"}),
        (OwnNew(2), {"code": 4}),
        (Slotted(5), {"rank": 5}),
        (OwnReduce(1, 2), {"left": 1, "right": 2, "args": (3,)}),
        (BadReduce("k"), {"args": ("k",)}),
        (BadStr("v"), {"args": ("v",)}),
        (Refusing("v"), {"args": ("v",)}),
        (NoSubclasses("v"), {"args": ("v",)}),
        (Abstract("v"), {"args": ("v",)}),
        (TwoBases(2, "gone", "file"), {"errno": 2, "filename": "file"}),
        (Frozen(3), {"code": 3}),
        (OSError(2, "gone", "a", None, "b"), {"errno": 2, "filename": "a", "filename2": "b"}),
        (FileNotFoundError(2, "gone"), {"errno": 2, "strerror": "gone"}),
        (UnicodeDecodeError("utf8", b"\xff", 0, 1, "bad"), {"object": b"\xff", "reason": "bad"}),
        (KeyError("k"), {"args": ("k",)}),
        (ImportError("m", name="n", path="p"), {"name": "n", "path": "p"}),
        (SyntaxError("bad", ("f.py", 3, 1, "x = =")), {"lineno": 3, "text": "x = ="}),
        (TimeoutError("late"), {"args": ("late",)}),
        (MailboxFull(4, "A"), {"len_max": 4, "actor": "A"}),
        (OwnFields(), {"rank": "theirs", "host": "theirs", "message": "theirs"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_type_arguments_and_attributes_survive(
    exception: Exception, fields: dict[str, Any]
) -> None:
    error = sent(exception, **PLACE)
    for received in (error, error.exception, pickle.loads(pickle.dumps(error))):
        assert isinstance(received, type(exception))
        assert {name: getattr(received, name) for name in fields} == fields
    assert type(error.exception) is type(exception)
    assert (error.where.rank, error.where.host) == (3, "node1")
    assert f"ActorError[{type(exception).__name__}]" in printed(error)
    assert "Traceback" in error.exception_formatted


@pytest.mark.parametrize(
    "exception",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError("why"),
        GeneratorExit(),
        StopIteration(5),
        StopAsyncIteration(),
        BaseExceptionGroup("both", [KeyboardInterrupt()]),
    ],
    ids=lambda exception: type(exception).__name__,
)
def test_control_flow_exceptions_arrive_only_as_actor_errors(
    exception: BaseException,
) -> None:
    error = sent(exception, **PLACE)
    assert not isinstance(error, (type(exception), StopIteration, asyncio.CancelledError))
    assert isinstance(error, Exception)
    assert type(error.exception) is type(exception)
    assert repr(error.exception) == repr(exception)
    assert f"mesh_core.ActorError[{type(exception).__name__}]" in printed(error)
    assert type(pickle.loads(pickle.dumps(error)).exception) is type(exception)


async def test_remote_stop_iteration_and_cancellation_pass_through_a_coroutine() -> None:
    async def fails(exception: BaseException) -> None:
        raise sent(exception)

    for exception in (StopIteration(1), asyncio.CancelledError()):
        with pytest.raises(ActorError):
            await asyncio.create_task(fails(exception))


def test_the_error_derives_from_the_nearest_base_that_can_be_raised() -> None:
    assert isinstance(sent(Guarded("v")), ArithmeticError)
    assert type(sent(Guarded("v")).exception) is Guarded


def test_an_exception_with_a_broken_getattribute_still_arrives() -> None:
    error = sent(BadGetattribute("v"))
    assert isinstance(error, BadGetattribute)
    assert error.args == ("v",)
    assert "mesh_core.ActorError[BadGetattribute]: v" in printed(error)


def test_a_frozen_exception_can_pass_through_a_context_manager() -> None:
    @contextmanager
    def block() -> Iterator[None]:
        yield

    with pytest.raises(Frozen) as caught, block():
        raise sent(Frozen(3))
    assert caught.value.code == 3


def test_local_class_arrives_by_value() -> None:
    class Local(ValueError):
        def hint(self) -> str:
            return f"hint {self.args[0]}"

    error = sent(Local("v"))
    assert isinstance(error, Local)
    assert error.hint() == "hint v"
    assert "mesh_core.ActorError[Local]: v" in printed(error)


def test_class_that_the_caller_cannot_import_arrives_as_its_nearest_base() -> None:
    source = """
        class Lost(LookupError):
            def __init__(self, a, b):
                super().__init__(a)
                self.b = b
            def __str__(self):
                return f"lost {self.args[0]}"
    """
    cls = ghost(source, "Lost")
    body = encode_exception(cls("x", {1, 2}))
    del sys.modules["ghost"]
    error = decode_exception(body)
    assert isinstance(error, LookupError)
    assert "mesh_core.ActorError[Lost]: lost x" in printed(error)
    assert str(error.exception) == "lost x"
    assert type(error.exception).__name__ == "Lost"
    assert (error.args, error.b) == (("x",), {1, 2})  # type: ignore[attr-defined]
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_unpicklable_value_arrives_as_its_repr() -> None:
    exception = ValueError("a", open)
    exception.lock = open  # type: ignore[attr-defined]
    exception.generator = (x for x in "ab")  # type: ignore[attr-defined]
    error: Any = sent(exception)
    assert error.args == ("a", open)
    assert error.generator.startswith("<generator object")


def test_a_value_that_the_caller_cannot_load_is_replaced_by_the_reason() -> None:
    value = ghost("class Value: pass", "Value")()
    body = encode_exception(ValueError("a", value))
    del sys.modules["ghost"]
    error = decode_exception(body)
    assert isinstance(error, ValueError)
    assert error.args[0] == "a"
    assert "No module named 'ghost'" in error.args[1]


def test_a_huge_message_arrives_in_full_and_its_text_is_truncated() -> None:
    error = sent(ValueError("x" * 10_000_000))
    assert isinstance(error, ValueError)
    assert len(error.args[0]) == 10_000_000
    assert len(str(error)) < 300_000
    assert "characters omitted" in str(error)


def test_an_oversized_exception_loses_only_its_large_values() -> None:
    exception = ValueError("x" * 1_000_000, "small")
    body = encode_exception(exception, len_max=500_000)
    assert len(body) <= 500_000
    error = decode_exception(body)
    assert isinstance(error, ValueError)
    assert error.args[1] == "small"
    assert len(error.args[0]) < 2_000


def test_the_object_of_an_attribute_error_is_not_sent() -> None:
    class Big:
        weights = bytes(1_000_000)

        def __reduce__(self) -> Any:
            raise AssertionError("pickled the actor")

    try:
        Big().nothing  # type: ignore[attr-defined]  # noqa: B018
    except AttributeError as raised:
        body = encode_exception(raised)
    error = decode_exception(body)
    assert isinstance(error, AttributeError)
    assert error.name == "nothing"
    assert len(body) < 10_000


def test_causes_contexts_and_notes_survive() -> None:
    def fails() -> None:
        try:
            try:
                os.environ["NO_SUCH_VARIABLE"]
            except KeyError:
                raise OSError(5, "while looking") from None
        except OSError as error:
            raised = ValueError("outer")
            raised.add_note("first note")
            raise raised from error

    try:
        fails()
    except ValueError as raised:
        error = decode_exception(encode_exception(raised))
    for received in (error, error.exception, pickle.loads(pickle.dumps(error))):
        assert received.__notes__ == ["first note"]
        cause = received.__cause__
        assert isinstance(cause, OSError)
        assert cause.errno == 5
        assert isinstance(cause.__context__, KeyError)
        assert cause.__suppress_context__
    assert "direct cause of the following" in str(error)


def test_exceptions_with_cyclic_causes_arrive() -> None:
    one, two = ValueError(1), KeyError(2)
    one.__cause__, two.__cause__ = two, one
    error = decode_exception(encode_exception(one))
    assert error.exception.__cause__.__cause__ is error.exception  # type: ignore[union-attr]


def test_a_long_exception_chain_is_truncated() -> None:
    exception = Exception(0)
    for number in range(1, 5_000):
        outer = Exception(number)
        outer.__context__ = exception
        exception = outer
    assert sent(exception).args == (4_999,)


def test_group_keeps_its_members_and_can_be_split() -> None:
    group = ExceptionGroup("two", [NeedsMore("a", 1), ExceptionGroup("in", [KeyError("k")])])
    error = sent(group)
    assert isinstance(error, ExceptionGroup)
    assert error.message == "two"
    assert error.where is not None
    handled: list[Any] = []
    try:
        raise error
    except* KeyError as keys:
        handled.append(keys)
    except* NeedsMore as more:
        handled.append(more)
    assert [len(one.exceptions) for one in handled] == [1, 1]
    assert handled[1].exceptions[0].port == 1


def test_exception_through_two_actors_keeps_its_type_and_both_tracebacks() -> None:
    inner = sent(NeedsMore("a", 1), actor="Inner", rank=0)
    outer = sent(inner, actor="Outer", rank=1)
    assert isinstance(outer, NeedsMore)
    assert outer.port == 1
    assert type(outer) is type(inner)
    middle = outer.exception
    assert isinstance(middle, ActorError)
    assert (outer.where.actor, middle.where.actor) == ("Outer", "Inner")
    assert type(middle.exception) is NeedsMore
    assert "actor 'Inner'" in str(outer)
    assert "actor 'Outer'" in str(outer)
    assert str(pickle.loads(pickle.dumps(outer))) == str(outer)


def test_supervision_error_through_an_actor_keeps_its_fields() -> None:
    error = sent(ProcDied(rank=7, signal=9, log_tail=["bye"], cause=KeyError("k")), rank=1)
    assert isinstance(error, ProcDied)
    assert (error.rank, error.signal, error.log_tail, error.where.rank) == (7, 9, ("bye",), 1)
    assert isinstance(error.__cause__, KeyError)


def test_frames_of_mesh_itself_are_left_out() -> None:
    try:
        ConfigError(*())  # type: ignore[call-arg]
    except TypeError as raised:
        text = decode_exception(encode_exception(raised)).exception_formatted
    assert "mesh_core" not in text.replace("packages/mesh-core", "")
    assert "ConfigError(*())" in text


def test_an_unreadable_body_becomes_an_actor_error() -> None:
    for body in (b"", b"nonsense", pickle.dumps(3), pickle.dumps(("", []))):
        error = decode_exception(body, actor="A")
        assert "could not be loaded" in str(error)


def test_a_body_can_be_a_memoryview() -> None:
    body = memoryview(encode_exception(ValueError(1)))
    assert isinstance(decode_exception(body), ValueError)


def test_an_exception_is_hashable_and_equal_only_to_itself() -> None:
    one, two = sent(Frozen(1)), sent(Frozen(1))
    assert len({one, two, one}) == 2


def test_a_locally_created_actor_error_is_caught_by_its_type() -> None:
    error = as_actor_error(KeyError("k"), where=Where(actor="A"))
    assert isinstance(error, KeyError)
    assert isinstance(pickle.loads(pickle.dumps(error)), KeyError)


def test_an_actor_error_can_be_created_from_an_exception() -> None:
    error = ActorError(KeyError("k"), "a call failed")
    assert (error.message, error.exception.args) == ("a call failed", ("k",))
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.message, copied.exception.args) == ("a call failed", ("k",))


def test_exception_by_value_reaches_another_interpreter() -> None:
    class Local(ValueError):
        pass

    body = encode_exception(Local("over there"))
    code = """
        import sys
        from mesh_core._serialization.remote_error import decode_exception
        error = decode_exception(sys.stdin.buffer.read())
        assert isinstance(error, ValueError)
        print(type(error).__name__, error.args)
    """
    path = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    ended = run(
        [sys.executable, "-c", textwrap.dedent(code)],
        input=body,
        capture_output=True,
        check=False,
        env=path,
    )
    assert ended.stdout == b"ActorError[Local] ('over there',)\n", ended.stderr


class Failing(Actor):
    @endpoint
    def fail(self) -> None:
        raise ValueError("bad batch")


def test_frames_that_call_an_endpoint_are_left_out(procs: ProcMesh) -> None:
    failing = procs.slice(gpus=0).spawn("failing", Failing)
    with pytest.raises(ValueError, match="bad batch") as raised:
        failing.fail.call_one().get()
    assert 'raise ValueError("bad batch")' in str(raised.value)
    assert "mesh_core/_actors" not in str(raised.value)
