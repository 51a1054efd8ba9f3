"""The errors of Mesh: their attributes, their messages, and the report that ends a program."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hostile_exceptions import PLACE, printed, sent

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
from mesh_core._supervision.failure_report import report

# The tests below check the exception hierarchy.


def test_a_proc_died_error_has_a_rank() -> None:
    assert ProcDied().rank == 0
    assert pickle.loads(pickle.dumps(ProcDied(rank=3))).rank == 3


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
def test_every_error_derives_from_mesh_error_and_its_standard_bases(
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


def test_an_unpicklable_cause_is_replaced_by_its_text() -> None:
    cause = KeyError("k", lambda: None)
    error = pickle.loads(pickle.dumps(ActorFailed(cause=cause)))
    assert isinstance(error.__cause__, MeshError)
    assert str(error.__cause__) == f"KeyError: {cause}"


def test_a_traceback_shows_the_public_name_of_an_error() -> None:
    assert printed(NoReply("x")).endswith("mesh_core.NoReply: x\n")
    assert printed(sent(NoReply("x"))).count("mesh_core.ActorError[NoReply]: x\n") == 1


def test_the_error_of_a_dead_process_is_one_paragraph() -> None:
    error = ProcDied(
        **PLACE, signal=9, log_tail=("loading", "x" * 1_000), cause=OSError("disk full")
    )
    lines = str(error).splitlines()
    assert lines[0] == (
        "actor 'Trainer' of mesh 'trainers', rank 3 (hosts=1, gpus=1), host node1, proc p3, "
        "pid 4242, died: killed by SIGKILL (signal 9); endpoint 'step' did not reply"
    )
    assert lines[1] == "  caused by OSError: disk full"
    assert lines[2:4] == ["  last lines of its log:", "    | loading"]
    assert len(lines[4]) < 500
    assert lines[5].startswith("  hint: SIGKILL is often sent")
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
        (ActorFailed(cause=KeyError("k")), "caused by KeyError: 'k'"),
        (MailboxFull(4, "A"), "mailbox of actor 'A' is full (4 messages)"),
        (DeadlineExceeded("go", 0.5, "A"), "call of 'go' to actor 'A' took longer"),
        (DeadlineExceeded("go", 0.5), "its timeout of 0.5 s"),
    ],
)
def test_the_message_says_what_happened(error: MeshError, words: str) -> None:
    assert words in str(error)
    assert not str(error).endswith(".")


def test_where_holds_the_location_of_a_failure() -> None:
    where = ProcDied(**PLACE).where
    assert {name: getattr(where, name) for name in PLACE} == PLACE
    assert repr(pickle.loads(pickle.dumps(where))) == repr(where)
    assert repr(Where(rank=1, host="a")) == "Where(host='a', rank=1)"


def test_the_repr_of_a_supervision_error_shows_the_known_fields() -> None:
    assert repr(ProcDied(rank=1, signal=9)) == "ProcDied(signal=9, Where(rank=1))"


# The tests below check failures of several ranks.


def test_the_first_failure_is_raised_and_lists_all_failures() -> None:
    errors = [sent(ValueError(rank), rank=rank) for rank in range(12)]
    failures = [(rank, error) for rank, error in enumerate(errors)]
    error = join_failures(failures)
    assert error is errors[0]
    assert isinstance(error, ActorError)
    assert error.failures == tuple(failures)
    assert "failed as well: rank 1 (ActorError[ValueError]), rank 2" in str(error)
    assert "and 3 more; see .failures" in str(error)


def test_a_single_failure_lists_only_itself() -> None:
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


# The tests below check the report that ends a program.


def test_a_report_has_the_users_traceback_the_location_the_log_and_a_hint() -> None:
    cause = sent(ValueError("bad batch"), **PLACE)
    text = report(ActorFailed(**PLACE, log_tail=["epoch 1", "epoch 2"], cause=cause))
    own, place, log, to_do = text.split("\n\n")
    assert own.startswith("Traceback (most recent call last):\n")
    assert own.endswith("ValueError: bad batch")
    assert place.splitlines() == [
        "Unhandled failure of actor 'Trainer' of mesh 'trainers': the program exits.",
        "  rank       3 (hosts=1, gpus=1)",
        "  host       node1",
        "  process    p3, pid 4242",
        "  endpoint   step",
        "  failure    ActorFailed: actor 'Trainer' of mesh 'trainers' failed",
        "  caused by  ValueError: bad batch",
    ]
    assert log.splitlines()[1:] == ["  | epoch 1", "  | epoch 2"]
    assert to_do.startswith("Hint: spawn it again, spawn it with a restart strategy")


def test_report_of_a_dead_process_has_no_traceback() -> None:
    text = report(ProcDied(**PLACE, signal=9))
    assert text.startswith("Unhandled failure of actor 'Trainer'")
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
    assert "  and        3 more ranks\n" in text
