"""Errors: what they carry, how they read, and how an actor's exception arrives at its caller."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
import textwrap
import traceback
import types
from abc import ABC
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import run
from typing import TYPE_CHECKING, Any

import pytest
from mesh_core._errors import (
    ActorError,
    ActorFailed,
    CallCancelled,
    ChannelClosed,
    ConfigError,
    DeadlineExceeded,
    DeadlockError,
    HostDied,
    MailboxFull,
    MeshError,
    MeshStopped,
    NoReply,
    ProcDied,
    SpawnError,
    SupervisionError,
    Unpicklable,
    Where,
    join_failures,
)
from mesh_core._failure_report import report
from mesh_core._remote_error import as_actor_error, decode_exception, encode_exception

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACE: dict[str, Any] = {
    "mesh_name": "trainers",
    "actor": "Trainer",
    "rank": 3,
    "point": {"hosts": 1, "gpus": 1},
    "host": "node1",
    "proc": "p3",
    "pid": 4242,
    "endpoint": "step",
}


def sent(exception: BaseException, **where: Any) -> ActorError:
    """Raises an exception as an endpoint would, and gives what its caller gets."""
    try:
        raise exception
    except BaseException as raised:
        return decode_exception(encode_exception(raised), **where)


def printed(error: BaseException) -> str:
    """Gives what the interpreter prints when nobody catches the error."""
    try:
        raise error
    except BaseException as raised:
        return "".join(traceback.format_exception(raised))


def ghost(source: str, name: str) -> Any:
    """Gives a class of a module that only this side can import, until the module is dropped."""
    module = types.ModuleType("ghost")
    sys.modules["ghost"] = module
    exec(textwrap.dedent(source), module.__dict__)
    return getattr(module, name)


# The tree.


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (ProcDied(), (SupervisionError, RuntimeError)),
        (HostDied(), (SupervisionError, RuntimeError)),
        (ActorFailed(), (SupervisionError, RuntimeError)),
        (MeshStopped(), (SupervisionError, RuntimeError)),
        (MailboxFull(4), ()),
        (DeadlineExceeded(), (TimeoutError,)),
        (CallCancelled("x"), ()),
        (DeadlockError("x"), ()),
        (SpawnError("x"), ()),
        (ConfigError("x"), (ValueError,)),
        (ChannelClosed("x"), ()),
        (NoReply("x"), ()),
        (Unpicklable("x"), (TypeError,)),
        (ActorError(KeyError("k")), ()),
    ],
)
def test_everything_of_ours_is_a_mesh_error_and_what_it_resembles(
    error: MeshError, bases: tuple[type, ...]
) -> None:
    assert isinstance(error, MeshError)
    assert all(isinstance(error, base) for base in bases)


@pytest.mark.parametrize(
    "error",
    [
        ProcDied(**PLACE, exit_code=3, signal=9, log_tail=["a", "b"], reason="of its own"),
        HostDied(host="node1"),
        ActorFailed("gave up", actor="Trainer"),
        MeshStopped(mesh_name="trainers"),
        MailboxFull(4, "Trainer"),
        DeadlineExceeded("step", 2.0, "Trainer", rank=1),
        DeadlockError("a waits for b", cycle=["a", "b"]),
        Unpicklable("cannot", path="argument 'x'"),
        ConfigError("unknown"),
        CallCancelled("by its caller"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("duplicate", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_fields_and_text_survive_pickling(error: MeshError, duplicate: Any) -> None:
    error.add_note("seen twice")
    other = duplicate(error)
    assert type(other) is type(error)
    assert other.__dict__ == error.__dict__
    assert (other.args, str(other)) == (error.args, str(error))


def test_cause_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ActorFailed(cause=KeyError("k"))))
    assert repr(error.__cause__) == "KeyError('k')"


def test_cause_that_cannot_be_pickled_becomes_its_text() -> None:
    cause = KeyError("k", lambda: None)
    error = pickle.loads(pickle.dumps(ActorFailed(cause=cause)))
    assert isinstance(error.__cause__, MeshError)
    assert str(error.__cause__) == f"KeyError: {cause}"


def test_dead_process_reads_as_one_paragraph() -> None:
    error = ProcDied(
        **PLACE, signal=9, log_tail=("loading", "x" * 1_000), cause=OSError("disk full")
    )
    lines = str(error).splitlines()
    assert lines[0] == (
        "actor 'Trainer' of mesh 'trainers', rank 3 (hosts=1, gpus=1), host node1, proc p3, "
        "pid 4242, died: killed by SIGKILL (signal 9); endpoint 'step' gave no answer"
    )
    assert lines[1] == "  because of OSError: disk full"
    assert lines[2:4] == ["  the last lines of its log:", "    | loading"]
    assert len(lines[4]) < 500
    assert lines[5].startswith("  to do: someone sent SIGKILL")
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ProcDied(exit_code=3), "its process exited with status 3"),
        (ProcDied(signal=11), "SIGSEGV"),
        (ProcDied(signal=200), "killed by signal 200"),
        (ProcDied(), "its process is gone"),
        (HostDied(host="node1"), "host 'node1', host node1, is lost"),
        (MeshStopped("by its owner", mesh_name="m"), "mesh 'm' is stopped: by its owner"),
        (ActorFailed(cause=KeyError("k")), "because of KeyError: 'k'"),
        (MailboxFull(4, "A"), "mailbox of actor 'A' is full (4 messages)"),
        (DeadlineExceeded("go", 0.5, "A"), "call of 'go' to actor 'A' took longer"),
        (DeadlineExceeded("go", 0.5), "its timeout of 0.5 s"),
    ],
)
def test_text_says_what_happened(error: MeshError, words: str) -> None:
    assert words in str(error)
    assert not str(error).endswith(".")


def test_where_gathers_the_place_of_a_failure() -> None:
    where = ProcDied(**PLACE).where
    assert {name: getattr(where, name) for name in PLACE} == PLACE
    assert repr(pickle.loads(pickle.dumps(where))) == repr(where)
    assert repr(Where(rank=1, host="a")) == "Where(host='a', rank=1)"


def test_repr_of_a_supervision_error_says_what_is_known() -> None:
    assert repr(ProcDied(rank=1, signal=9)) == "ProcDied(signal=9, Where(rank=1))"


# An actor's exception at its caller.


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


def test_text_shows_the_remote_traceback_and_the_place() -> None:
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


class NeedsMore(Exception):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} refused")
        self.host, self.port = host, port


class WithDefault(Exception):
    """Would be made again wrongly, and silently, from its `args`."""

    def __init__(self, name: str, suffix: str = "!") -> None:
        super().__init__(name + suffix)
        self.name = name


class KeywordOnly(LookupError):
    def __init__(self, *, key: str) -> None:
        super().__init__()
        self.key = key

    def __str__(self) -> str:
        return f"no {self.key}"


class OwnNew(Exception):
    def __new__(cls, code: int) -> OwnNew:
        self = super().__new__(cls)
        self.code = code * 2
        return self

    code: int


class Slotted(Exception):
    __slots__ = ("rank",)

    def __init__(self, rank: int) -> None:
        self.rank = rank


class OwnReduce(Exception):
    def __init__(self, left: int, right: int) -> None:
        super().__init__(left + right)
        self.left, self.right = left, right

    def __reduce__(self) -> Any:
        return OwnReduce, (self.left, self.right)


class BadReduce(KeyError):
    def __reduce__(self) -> Any:
        raise RuntimeError("no")


class BadStr(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class BadGetattribute(ValueError):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no")


class Refusing(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("frozen")


class NoSubclasses(ValueError):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError("final")


class Meta(type):
    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        if name != "Guarded":
            raise TypeError("no subclasses")
        return super().__new__(mcls, name, bases, namespace)


class Guarded(ArithmeticError, metaclass=Meta):
    pass


class Abstract(ValueError, ABC):
    pass


class TwoBases(KeyError, OSError):
    pass


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class OwnFields(Exception):
    """Has attributes that ours are called as well."""

    message = "theirs"

    def __init__(self) -> None:
        super().__init__("own")
        self.rank = "theirs"

    @property
    def host(self) -> str:
        return "theirs"


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
def test_what_would_end_or_confuse_the_caller_is_an_actor_error_alone(
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


def test_nearest_base_that_can_be_raised_is_kept() -> None:
    assert isinstance(sent(Guarded("v")), ArithmeticError)
    assert type(sent(Guarded("v")).exception) is Guarded


def test_class_that_breaks_every_access_still_arrives() -> None:
    error = sent(BadGetattribute("v"))
    assert isinstance(error, BadGetattribute)
    assert error.args == ("v",)
    assert "mesh_core.ActorError[BadGetattribute]: v" in printed(error)


def test_frozen_class_bears_what_the_interpreter_sets_on_the_way() -> None:
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


def test_value_that_cannot_travel_arrives_as_its_repr() -> None:
    exception = ValueError("a", open)
    exception.lock = open  # type: ignore[attr-defined]
    exception.generator = (x for x in "ab")  # type: ignore[attr-defined]
    error: Any = sent(exception)
    assert error.args == ("a", open)
    assert error.generator.startswith("<generator object")


def test_value_that_the_caller_cannot_load_says_why() -> None:
    value = ghost("class Value: pass", "Value")()
    body = encode_exception(ValueError("a", value))
    del sys.modules["ghost"]
    error = decode_exception(body)
    assert isinstance(error, ValueError)
    assert error.args[0] == "a"
    assert "No module named 'ghost'" in error.args[1]


def test_huge_message_arrives_and_its_text_is_cut() -> None:
    error = sent(ValueError("x" * 10_000_000))
    assert isinstance(error, ValueError)
    assert len(error.args[0]) == 10_000_000
    assert len(str(error)) < 300_000
    assert "characters left out" in str(error)


def test_exception_over_the_limit_loses_its_large_values_alone() -> None:
    exception = ValueError("x" * 1_000_000, "small")
    body = encode_exception(exception, len_max=500_000)
    assert len(body) <= 500_000
    error = decode_exception(body)
    assert isinstance(error, ValueError)
    assert error.args[1] == "small"
    assert len(error.args[0]) < 2_000


def test_actor_in_an_attribute_error_stays_where_it_is() -> None:
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
                {}["k"]
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


def test_exceptions_that_are_each_others_cause_arrive() -> None:
    one, two = ValueError(1), KeyError(2)
    one.__cause__, two.__cause__ = two, one
    error = decode_exception(encode_exception(one))
    assert error.exception.__cause__.__cause__ is error.exception  # type: ignore[union-attr]


def test_long_chain_is_cut_and_arrives() -> None:
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
    handled = []
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
    assert (outer.where.actor, outer.exception.where.actor) == ("Outer", "Inner")  # type: ignore[attr-defined]
    assert type(outer.exception.exception) is NeedsMore  # type: ignore[attr-defined]
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


def test_body_that_cannot_be_read_is_an_actor_error_as_well() -> None:
    for body in (b"", b"nonsense", pickle.dumps(3), pickle.dumps(("", []))):
        error = decode_exception(body, actor="A")
        assert "could not be read" in str(error)


def test_body_may_be_a_view() -> None:
    body = memoryview(encode_exception(ValueError(1)))
    assert isinstance(decode_exception(body), ValueError)


def test_exception_is_hashable_and_equal_to_itself_alone() -> None:
    one, two = sent(Frozen(1)), sent(Frozen(1))
    assert len({one, two, one}) == 2


def test_error_made_here_is_caught_by_its_type_too() -> None:
    error = as_actor_error(KeyError("k"), where=Where(actor="A"))
    assert isinstance(error, KeyError)
    assert isinstance(pickle.loads(pickle.dumps(error)), KeyError)


def test_plain_actor_error_is_made_of_an_exception() -> None:
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
        from mesh_core._remote_error import decode_exception
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


# Failures of many ranks.


def test_first_failure_is_raised_with_all_of_them() -> None:
    errors = [sent(ValueError(rank), rank=rank) for rank in range(12)]
    failures = [(rank, error) for rank, error in enumerate(errors)]
    error = join_failures(failures)
    assert error is errors[0]
    assert isinstance(error, ActorError)
    assert error.failures == tuple(failures)
    assert "failed as well: rank 1 (ActorError[ValueError]), rank 2" in str(error)
    assert "and 3 more; see .failures" in str(error)


def test_single_failure_is_its_own_only_one() -> None:
    error = sent(ValueError(1), rank=2)
    assert error.failures == ((2, error),)
    at = {"gpus": 2}
    dead = ProcDied(rank=2, point=at)
    assert dead.failures == ((at, dead),)


def test_failures_survive_pickling() -> None:
    errors = [sent(ValueError(0), rank=0), ProcDied(rank=1, signal=9)]
    error = pickle.loads(pickle.dumps(join_failures(list(enumerate(errors)))))
    assert [(rank, type(one).__name__) for rank, one in error.failures] == [
        (0, "ActorError[ValueError]"),
        (1, "ProcDied"),
    ]
    assert error.failures[0][1] is error


# The report that ends a program.


def test_report_begins_with_the_users_traceback_and_names_everything() -> None:
    cause = sent(ValueError("bad batch"), **PLACE)
    text = report(ActorFailed(**PLACE, log_tail=["epoch 1", "epoch 2"], cause=cause))
    own, place, log, to_do = text.split("\n\n")
    assert own.startswith("Traceback (most recent call last):\n")
    assert own.endswith("ValueError: bad batch")
    assert place.splitlines() == [
        "Nobody handled this failure of actor 'Trainer' of mesh 'trainers', so the program ends.",
        "  rank       3 (hosts=1, gpus=1)",
        "  host       node1",
        "  process    p3, pid 4242",
        "  endpoint   step",
        "  failure    ActorFailed: actor 'Trainer' of mesh 'trainers' failed",
        "  because of ValueError: bad batch",
    ]
    assert log.splitlines()[1:] == ["  | epoch 1", "  | epoch 2"]
    assert to_do.startswith("To do: spawn it again, spawn it with a restart strategy")


def test_report_of_a_dead_process_has_no_traceback() -> None:
    text = report(ProcDied(**PLACE, signal=9))
    assert text.startswith("Nobody handled this failure of actor 'Trainer'")
    assert "killed by SIGKILL (signal 9)" in text


def test_report_of_a_plain_exception_shows_its_traceback() -> None:
    try:
        raise ValueError("here")
    except ValueError as raised:
        text = report(raised)
    assert 'raise ValueError("here")' in text
    assert "failure    ValueError: here" in text


def test_report_names_the_other_ranks() -> None:
    failures = [(rank, sent(ValueError(rank), rank=rank)) for rank in range(12)]
    text = report(join_failures(failures))
    assert "  rank 1     ValueError: 1\n" in text
    assert "  and        3 ranks more\n" in text
