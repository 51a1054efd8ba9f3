"""The ranks that are named as culprits, determined only from the states of processes."""

from __future__ import annotations

from itertools import starmap

import pytest

from mesh_telemetry import Hang
from mesh_telemetry._collectives.collectives_file import Collective, ProcessGroup
from mesh_telemetry._hangs.analysis import find_hangs
from mesh_telemetry._hangs.process_state import Frame, ProcessState, Stack, Wait
from mesh_telemetry._hangs.waits import find_waits

S = 1_000_000_000
NOW = 1000 * S
SIZE = 4
WORLD = "node:1"
PATIENCE_S = 0.8
#: The sequence number of the first operation of a test: the program has trained for a while.
FIRST = 100
LOADER = "/site-packages/torch/utils/data/dataloader.py"


def call(sequence: int, operation: str = "all_reduce", **changed: object) -> Collective:
    """An operation that was called a tenth of a second after the one before, and has ended.

    Args:
        sequence: Its number, from `FIRST`.
        operation: Its name.
        changed: Other values of its fields.
    """
    entered = NOW - 12 * S + sequence * S // 10
    one = Collective(
        sequence, 0, -1, FIRST + sequence, entered, entered + S // 100, 16, 31, False, False, 1,
        operation, "float32[4]", "/job/train.py", "step",
    )  # fmt: skip
    return one._replace(**changed)  # type: ignore[arg-type]


def waiting(sequence: int, operation: str = "all_reduce", **changed: object) -> Collective:
    """An operation that was called two seconds ago and has not ended."""
    return call(sequence, operation, entered_ns=NOW - 2 * S, left_ns=0, **changed)


def process(rank: int, *calls: Collective, **changed: object) -> ProcessState:
    """A rank that sleeps in a line outside of collectives; two are on each host."""
    groups = tuple(
        ProcessGroup(number, name, WORLD, tuple(range(SIZE)), rank, "gloo")
        for number, name in enumerate(("0", "1"))
    )
    one = ProcessState(
        rank // 2, f"node{rank // 2}", rank % 2 + 1, "train", rank, 100 + rank, NOW, "S", False,
        1.0, 0, groups, calls, (stack(("work", "/job/loader.py", 88)),), (), ("train",),
    )  # fmt: skip
    return one._replace(**changed)  # type: ignore[arg-type]


def stack(*frames: tuple[str, str, int]) -> Stack:
    """The stack of the thread that calls collectives."""
    return Stack("mesh-trainers", 1, None, tuple(starmap(Frame, frames)))


def others(rank: int, *calls: Collective) -> list[ProcessState]:
    """All ranks but one."""
    return [process(each, *calls) for each in range(SIZE) if each != rank]


def only(states: list[ProcessState], before: list[ProcessState] | None = None) -> Hang:
    """Return the only hang."""
    earlier = before or [state._replace(now_ns=state.now_ns - S // 4) for state in states]
    (found,) = find_hangs(earlier, states, PATIENCE_S)
    return found


def test_no_rank_is_named_while_collectives_complete() -> None:
    assert find_hangs([], [process(rank, call(0), call(1)) for rank in range(SIZE)], 0.8) == []


def test_a_rank_that_has_not_joined_is_named_with_its_line() -> None:
    hang = only([*others(2, call(0), waiting(1)), process(2, call(0))])
    assert (hang.kind, hang.is_certain) == ("blocked", True)
    assert str(hang) == (
        "rank 2 of 'train' (process 1.1, pid 102, host node1) is blocked, and has not called it\n"
        "    at /job/loader.py:88 in work\n"
        "rank 0-1, 3 wait in all_reduce #101 of group '0' for 2.0 s\n"
        "    at /job/train.py:31 in step"
    )


def test_the_last_operation_of_an_unresponsive_host_is_not_considered_running() -> None:
    silent = {"state": "?", "stacks": None, "silent_s": 2.2, "now_ns": NOW - 23 * S // 2}
    # At the last reply of the host, one of its ranks had not yet called the operation in which the
    # other waited.
    lost = [process(2, call(0), call(1, left_ns=0), **silent), process(3, call(0), **silent)]
    trained = [*map(call, range(4)), waiting(4)]
    states = [process(0, *trained), process(1, *trained), *lost]
    hangs = find_hangs(states, states, PATIENCE_S)
    assert {(hang.kind, hang.is_certain) for hang in hangs} == {("lost", True)}
    assert {culprit.rank for hang in hangs for culprit in hang.culprits} == {2, 3}


def test_a_send_of_an_unresponsive_host_does_not_hide_a_receive_of_another() -> None:
    silent = {"state": "?", "stacks": None, "silent_s": 2.2, "now_ns": NOW - 23 * S // 2}
    stale = call(1, "send", left_ns=0, peer=1)
    receive = waiting(2, "recv", peer=1)
    states = [process(0, stale, **silent), process(1, **silent), process(2, receive), process(3)]
    hang = only(states)
    assert (hang.kind, hang.is_certain) == ("lost", True)
    assert hang.culprits[0].rank == 1


def test_an_unresponsive_host_is_lost_even_if_its_ranks_had_joined() -> None:
    silent = {"state": "?", "stacks": None, "silent_s": 2.2}
    lost = [process(rank, call(0), call(1), **silent) for rank in (2, 3)]
    hang = only([*(process(rank, call(0), waiting(1)) for rank in (0, 1)), *lost])
    assert (hang.kind, hang.is_certain) == ("lost", True)
    assert {culprit.rank for culprit in hang.culprits} == {2, 3}


@pytest.mark.parametrize(
    ("changed", "kind", "reason"),
    [
        ({"state": "T"}, "stopped", "SIGSTOP"),
        ({"state": "?", "stacks": None, "silent_s": 2.2}, "lost", "neither does its host"),
        ({"running": (), "stacks": ()}, "missing_call", "has returned, after all_reduce #100"),
        (
            {"stacks": (stack(("_get", LOADER, 7), ("work", "/job/loader.py", 88)),)},
            "data_loader",
            "data loader",
        ),
        ({"stacks": None}, "blocked", "does not reply"),
    ],
)
def test_the_state_of_a_missing_rank_determines_the_kind_of_hang(
    changed: dict[str, object], kind: str, reason: str
) -> None:
    hang = only([*others(3, call(0), waiting(1)), process(3, call(0), **changed)])
    assert (hang.kind, hang.is_certain) == (kind, True)
    assert reason in hang.culprits[0].reason


def test_a_computing_rank_is_named_but_its_hang_is_not_certain() -> None:
    states = [*others(3, call(0), waiting(1)), process(3, call(0), cpu_s=1.2)]
    before = [one._replace(now_ns=one.now_ns - S // 4, cpu_s=1.0) for one in states]
    hang = only(states, before)
    assert (hang.kind, hang.is_certain) == ("busy", False)


def test_a_host_that_replies_late_is_not_certain_to_be_lost() -> None:
    late = process(3, call(0), state="?", stacks=None, silent_s=1.1)
    hang = only([*others(3, call(0), waiting(1)), late])
    assert (hang.kind, hang.is_certain) == ("lost", False)


def test_a_hang_is_not_certain_while_a_rank_writes_a_checkpoint() -> None:
    states = [*others(0, call(0), waiting(1)), process(0, call(0), io_bytes=8 << 20)]
    before = [one._replace(now_ns=one.now_ns - S // 4, io_bytes=4 << 20) for one in states]
    hang = only(states, before)
    assert (hang.kind, hang.is_certain) == ("busy", False)


def test_a_hang_is_not_certain_while_a_rank_waits_for_a_cpu() -> None:
    states = [*others(3, call(0), waiting(1)), process(3, call(0), is_busy=True, state="R")]
    assert not only(states).is_certain


def test_a_hang_is_not_certain_while_a_rank_reaches_other_lines() -> None:
    def at_line(line: int) -> list[ProcessState]:
        late = process(3, call(0), stacks=(stack(("work", "/job/loader.py", line)),))
        return [*others(3, call(0), waiting(1)), late]

    assert not only(at_line(88), at_line(86)).is_certain
    assert only(at_line(88), at_line(88)).is_certain


def test_a_hang_is_not_certain_if_the_group_had_similar_pauses_before() -> None:
    calls = [call(0), call(1), call(2, entered_ns=NOW - 4 * S), waiting(3)]
    hang = only([*others(3, *calls), process(3, *calls[:3])])
    assert (hang.kind, hang.is_certain) == ("blocked", False)


def test_a_rank_that_is_late_for_its_first_operation_may_still_be_starting() -> None:
    def at_start(waited_s: int, *others_too: ProcessState) -> Hang:
        first = waiting(0)._replace(sequence=0, entered_ns=NOW - waited_s * S)
        return only([process(0, first), process(1, first), process(2, first), *others_too])

    # It loads data, or has not created its process group yet.
    for late in ((process(3),), (process(3, groups=()),), ()):
        assert not at_start(2, *late).is_certain
        assert at_start(11, *late).is_certain
    assert at_start(2, process(3, state="T")).is_certain


def test_a_hang_is_not_certain_while_an_idle_rank_is_being_called() -> None:
    idle = process(3, call(0), running=(), stacks=())
    program = process(0, groups=(), slot=0, mesh="root", waits=(Wait("", "step", idle.proc, 1.0),))
    hang = only([*others(3, call(0), waiting(1)), idle, program._replace(host=7)])
    assert (hang.kind, hang.is_certain) == ("missing_call", False)


def test_a_different_operation_is_named_even_if_all_ranks_wait() -> None:
    other = waiting(1, "broadcast", peer=0, line=40)
    hang = only([*others(1, call(0), waiting(1)), process(1, call(0), other)])
    assert (hang.kind, hang.is_certain) == ("different_order", True)
    assert hang.culprits[0].where == "/job/train.py:40 in step"
    assert "has called broadcast (root 0) where others have called" in hang.culprits[0].reason


def test_a_different_shape_is_named_even_if_its_rank_failed() -> None:
    other = call(1, nbytes=28, shape="float32[7]", is_failed=True)
    hang = only([*others(1, call(0), waiting(1)), process(1, call(0), other)])
    assert hang.kind == "shape_mismatch"
    assert "passes float32[7] where others pass float32[4]" in hang.culprits[0].reason


def test_the_smaller_side_of_a_cycle_of_two_groups_is_named() -> None:
    inner = waiting(0, group=1, line=40)
    hang = only([*others(2, call(0), waiting(1)), process(2, call(0), inner)])
    assert (hang.kind, [one.rank for one in hang.culprits]) == ("different_order", [2])
    assert "is in all_reduce #100 of group '1'" in hang.culprits[0].reason


def test_the_end_of_a_chain_through_two_groups_is_named() -> None:
    # Ranks 0 and 1 wait for rank 2, which waits in another group for rank 3.
    states = [
        process(0, call(0), waiting(1), waiting(0, group=1, serial=9)),
        process(1, call(0), waiting(1), waiting(0, group=1, serial=9)),
        process(2, call(0), waiting(0, group=1, serial=9)),
        process(3, call(0), waiting(1)),
    ]
    states[3] = process(3, call(0))
    hang = only(states)
    assert [one.rank for one in hang.culprits] == [3]


def test_a_cycle_of_a_collective_and_a_call_is_a_deadlock() -> None:
    first = process(0, call(0), waiting(1))
    asks = process(3, call(0), waits=(Wait("trainers", "weights", first.proc, 2.0),))
    hang = only([first, *others(3, call(0), waiting(1))[1:], asks])
    assert (hang.kind, hang.is_certain) == ("deadlock", True)
    assert "waits for 'weights' of rank 0 of 'train', which is in" in hang.culprits[0].reason


def test_the_actor_for_which_a_missing_rank_waits_is_named() -> None:
    store = process(0, groups=(), mesh="store", running=("part",), slot=9, pid=900)
    asks = process(3, call(0), waits=(Wait("trainers", "part", store.proc, 2.0),))
    hang = only([*others(3, call(0), waiting(1)), asks, store])
    assert (hang.kind, hang.is_certain, hang.culprits[0].mesh) == ("blocked", True, "store")
    assert "serves 'part', for which process 1.2 of 'train' waits" in hang.culprits[0].reason


def test_a_process_that_has_exited_is_lost() -> None:
    exited = process(3, call(0), state="X", stacks=None, running=None)
    hang = only([*others(3, call(0), waiting(1)), exited])
    assert (hang.kind, hang.culprits[0].pid) == ("lost", 103)


def test_a_shape_that_crashed_a_process_is_named() -> None:
    other = waiting(1, nbytes=28, shape="float32[7]")
    exited = process(3, call(0), other, state="X", stacks=None, running=None)
    hang = only([*others(3, call(0), waiting(1)), exited])
    assert (hang.kind, hang.culprits[0].rank) == ("shape_mismatch", 3)


def test_an_operation_whose_end_a_stopped_rank_could_not_record_is_complete() -> None:
    states = [*others(2, call(0), waiting(1)), process(2, waiting(0), state="T")]
    hang = only(states)
    assert (hang.kind, [one.rank for one in hang.culprits]) == ("stopped", [2])
    assert hang.collective is not None
    assert hang.collective.ranks == (0, 1, 3)


def test_a_process_that_does_not_exist_is_lost() -> None:
    hang = only(others(3, call(0), waiting(1)))
    assert (hang.kind, hang.culprits[0].rank) == ("lost", 3)


def test_a_link_hang_is_found_if_all_ranks_joined_and_no_data_arrives() -> None:
    hang = only([process(rank, call(0), waiting(1)) for rank in range(SIZE)])
    assert (hang.kind, hang.is_certain, len(hang.culprits)) == ("link", True, SIZE)


@pytest.mark.parametrize(("last_took_s", "is_certain"), [(0.1, True), (0.5, False)])
def test_the_patience_for_a_link_depends_on_transfers_not_on_late_ranks(
    last_took_s: float, is_certain: bool
) -> None:
    # Three ranks have waited a second for the last one, and then for the data.
    early = call(0, entered_ns=NOW - 9 * S, left_ns=NOW - 8 * S)
    late = early._replace(entered_ns=early.left_ns - int(last_took_s * S))
    states = [*others(2, early, waiting(1)), process(2, late, waiting(1))]
    hang = only(states)
    assert (hang.kind, hang.is_certain) == ("link", is_certain)


def test_a_rank_that_waits_for_data_is_not_missing_from_the_next_operation() -> None:
    # The others have got all data of the first operation, and wait in the second one.
    states = [*others(2, call(0), call(1), waiting(2)), process(2, call(0), waiting(1))]
    hang = only(states)
    assert (hang.kind, [one.rank for one in hang.culprits]) == ("link", [2])
    assert hang.collective is not None
    assert hang.collective.sequence == FIRST + 1


def test_a_stopped_rank_is_named_even_if_it_has_joined() -> None:
    states = [process(rank, call(0), waiting(1)) for rank in range(SIZE)]
    states[2] = states[2]._replace(state="T")
    hang = only(states)
    assert (hang.kind, [one.rank for one in hang.culprits]) == ("stopped", [2])


def test_the_peer_that_does_not_send_is_named() -> None:
    receives = waiting(0, "recv", peer=1)
    hang = only([process(0, receives), process(1), process(2), process(3)])
    assert [one.rank for one in hang.culprits] == [1]
    sends = call(0, "send", peer=0)
    assert only([process(0, receives), process(1, sends), *others(0)[1:]]).kind == "link"


def test_the_end_of_a_chain_of_calls_is_named() -> None:
    reader = process(1, groups=(), mesh="data", running=("read",))
    trainer = process(0, groups=(), waits=(Wait("trainer", "read", reader.proc, 3.0),))
    program = process(2, groups=(), slot=0, mesh="root")
    program = program._replace(waits=(Wait("", "step", trainer.proc, None),))
    (hang,) = find_waits([program, trainer, reader])
    assert hang.collective is None
    assert str(hang) == (
        "rank 1 of 'data' (process 0.2, pid 101, host node0) serves 'read', for which process 0.1 "
        "of 'train' waits\n    at /job/loader.py:88 in work"
    )


def test_an_endpoint_that_only_the_called_rank_reports_is_named() -> None:
    reader = process(1, groups=(), mesh="data", running=("read",))
    program = process(2, groups=(), slot=0, mesh="root")
    # The program has called all ranks at once.
    program = program._replace(waits=(Wait("", "", reader.proc, None),))
    (hang,) = find_waits([program, reader])
    assert "serves 'read', for which process 1.0 of 'root' waits" in str(hang)


def test_a_script_and_its_launcher_are_separate_processes() -> None:
    # Both have the same slot; the starter is idle, and waits for no collective.
    starter = process(3, groups=(), pid=900)
    script = process(3, call(0), is_script=True, mesh="train.py", running=None)
    hang = only([*others(3, call(0), waiting(1)), starter, script])
    assert (hang.kind, hang.culprits[0].mesh, hang.culprits[0].pid) == ("blocked", "train.py", 103)


def test_threads_of_mesh_itself_are_not_mistaken_for_the_program() -> None:
    own = Stack("mesh-telemetry", 9, None, (Frame("stacks", "/env/mesh_telemetry/socket.py", 1),))
    theirs = Stack("mesh-reader", 8, None, (Frame("read", "/job/reader.py", 5),))
    reader = process(1, groups=(), mesh="data", stacks=(own, theirs))
    program = process(0, groups=(), slot=0, waits=(Wait("", "read", reader.proc, None),))
    (hang,) = find_waits([program, reader])
    assert hang.culprits[0].where == "/job/reader.py:5 in read"
