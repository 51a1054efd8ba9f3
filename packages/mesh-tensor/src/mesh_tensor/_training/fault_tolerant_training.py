"""The loop of the program that owns a training: run, detect failures, recover, continue."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from typing import TYPE_CHECKING, Any

from mesh_core import HostDied, MeshError, wait
from mesh_tensor._training.disk_checkpoint import latest_on_disk
from mesh_tensor._training.errors import NoCheckpoint, TrainingFailed
from mesh_tensor._training.members import Member, Members, holder_ranks
from mesh_tensor._training.membership_changes import MembershipChange, MembershipChanges
from mesh_tensor._training.progress_watch import POLL_S, ProgressWatch
from mesh_tensor._training.rank_actors import RankSettings
from mesh_tensor._training.rank_calls import REPLY_S, RankCalls
from mesh_tensor._training.recovery import Failure, Interrupted, Recovery
from mesh_tensor._training.restore_plan import plan_restore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future as Completion
    from types import TracebackType

    from mesh_core import Future, HostMesh, ProcMesh
    from mesh_tensor._training.disk_checkpoint import DiskCheckpoints
    from mesh_tensor._training.program import TrainingProgram
    from mesh_tensor._training.restore_plan import Copy

__all__ = ["FaultTolerantTraining"]

_log = logging.getLogger("mesh_tensor")


class FaultTolerantTraining:
    """Trains on the processes of a mesh, and continues after failures without a restart.

    Each rank keeps its state of the last two steps in memory, and a process on another host keeps
    copies. When a process or a host dies, a rank hangs or a step raises an exception, Mesh aborts
    the collectives of the other ranks, replaces dead processes, forms a new process group, and lets
    all ranks load the latest complete state. Surviving processes are not restarted. Steps are
    repeated with the same random numbers, so a deterministic program has the same result as without
    failures.

    Args:
        procs: The processes; ranks are those of the flattened mesh. Standby workers of their hosts
            replace hosts that die. More processes can be added later.
        program: The class of the `TrainingProgram`, or a function that creates one.
        *args: Its arguments.
        backend: The backend of `torch.distributed`.
        seed: Seeds the random numbers of each step.
        is_sharded: Whether each rank has a different state, as with FSDP. Otherwise all ranks have
            equal states, as with DDP, and any rank can restore any other.
        disk: The location of checkpoints on disk, which are loaded if all copies in memory are
            lost. If there is a checkpoint at the start, training continues from it.
        stall_timeout_s: The time without the end of a step after which ranks are considered to
            hang, not counting the time that a rank waits for a processor. Default: 20 times the
            longest step, at least 5 s.
        attempts: How often a step may fail before training ends with `TrainingFailed`.
        min_ranks: If a host dies and no standby worker is left, training continues with the ranks
            of the other hosts if there are at least this many. Default: all ranks are needed. With
            `is_sharded`, continuing with fewer ranks requires `disk`.
        **kwargs: Keyword arguments of the program.

    Attributes:
        recoveries: The recoveries so far.
        step: The number of steps that all ranks had finished when training last paused.
        host_names: The name of the host of each rank, once training has begun.

    Example:
        >>> with FaultTolerantTraining(procs, GPT, config) as training:  # doctest: +SKIP
        ...     training.run(10_000)
    """

    def __init__(
        self,
        procs: ProcMesh,
        program: Callable[..., TrainingProgram],
        *args: Any,
        backend: str = "gloo",
        seed: int = 0,
        is_sharded: bool = False,
        disk: DiskCheckpoints | None = None,
        stall_timeout_s: float | None = None,
        attempts: int = 5,
        min_ranks: int | None = None,
        **kwargs: Any,
    ) -> None:
        if attempts < 1:
            raise ValueError(f"attempts={attempts} is not positive")
        if stall_timeout_s is not None and stall_timeout_s <= 0:
            raise ValueError(f"stall_timeout_s={stall_timeout_s} is not positive")
        if min_ranks is not None and not 0 < min_ranks <= len(procs):
            raise ValueError(f"min_ranks={min_ranks} is not between 1 and {len(procs)}")
        if min_ranks is not None and is_sharded and disk is None:
            raise ValueError(
                "with is_sharded, ranks can only be removed by a checkpoint on disk: pass "
                "disk=DiskCheckpoints(folder)"
            )
        self.recoveries: list[Recovery] = []
        self.step: int = 0
        self.host_names: list[str] = []
        self._is_sharded = is_sharded
        self._disk = disk
        self._attempts = attempts
        self._min_ranks = min_ranks
        create = functools.partial(program, *args, **kwargs)
        module = getattr(program, "__module__", None)
        self._members = Members(create, module, RankSettings(backend, seed, is_sharded, disk))
        self._members.change(self._members.start(procs), ())
        self._changes = MembershipChanges()
        self._progress = ProgressWatch(self._members, stall_timeout_s)
        self._calls = RankCalls(self._members, self._progress)
        # The replies of ranks that are paused to stop at the same step, and that step.
        self._pauses: dict[int, Future[int]] = {}
        self._stop_step: int | None = None
        self._has_begun = self._is_prepared = False
        # The state of removed ranks is in the checkpoint of this step.
        self._step_on_disk: int | None = None

    def run(self, steps: int) -> None:
        """Train until this number of steps is reached, and recover from failures.

        Raises:
            TrainingFailed: The same step has failed too often, or a host has died, no standby
                worker is left, and fewer than `min_ranks` ranks remain.
            NoCheckpoint: All copies of some state are lost.
            RuntimeError: The caller is a coroutine, or a cell of a notebook.
        """
        if _is_on_event_loop():
            raise RuntimeError(
                "run() would block the event loop: use await asyncio.to_thread(training.run, steps)"
            )
        failure: Failure | None = None
        failed_at, attempts = -1, 0
        while True:
            try:
                if not self._is_prepared:
                    self._prepare(failure)
                self._train(steps)
                self._change_members()
            except Interrupted as interrupted:
                # If the recovery fails as well, training still recovers from the first failure.
                if failure is None or self._is_prepared:
                    failure = interrupted.failure
                self._is_prepared = False
            else:
                if self.step >= steps:
                    return
                failure = None
                continue
            attempts = attempts + 1 if self.steps_done == failed_at else 1
            failed_at = self.steps_done
            if attempts >= self._attempts:
                raise TrainingFailed(
                    f"step {failed_at} has failed {attempts} times: {failure.reason}"
                ) from failure.error

    def state_dict(self, rank: int = 0) -> Mapping[str, Any]:
        """Return the state of a rank, between two calls of `run`."""
        state: Mapping[str, Any] = self._members[rank].trainer.state.call_one().get()
        return state

    def add(self, procs: ProcMesh) -> Completion[None]:
        """Add processes to the training, as the last ranks.

        They join between two steps, as soon as they have started, if necessary during the next
        `run`. They load the state from the memory of the others. With `is_sharded`, all ranks write
        a checkpoint to disk first and load it again. `torch.distributed.checkpoint` must then be
        able to load the state into another number of ranks, as with FSDP2.

        Returns:
            A future that is done when the processes train. It raises the failure of a process that
            could not start.

        Raises:
            ValueError: The states are sharded and there is no folder for checkpoints, or the
                processes already take part.
        """
        self._require_disk()
        if self._members.on(procs):
            raise ValueError(f"processes of {procs!r} take part in the training already")
        joining = self._members.start(procs)
        places = [member.trainer.place.call_one() for member in joining]
        return self._changes.request(MembershipChange(joining=joining, places=places))

    def drain(self, where: HostMesh | ProcMesh) -> Completion[None]:
        """Let the ranks on hosts, or of processes, leave the training between two steps.

        No step is lost, and the other ranks continue with the same state. If no `run` is active,
        they leave during the next one. Stop the processes, or release the hosts, when the future is
        done.

        Returns:
            A future that is done when the processes no longer train.

        Raises:
            ValueError: No rank runs on the hosts or processes, no other rank is left, or the states
                are sharded and there is no folder for checkpoints.
        """
        self._require_disk()
        leaving = self._members.on(where)
        if not leaving:
            raise ValueError(f"no rank of the training is on {where!r}")
        if len(leaving) == len(self._members):
            raise ValueError(f"all ranks are on {where!r}: add others first")
        return self._changes.request(MembershipChange(leaving=leaving))

    def close(self) -> None:
        """Stop the actors of the training; the processes remain."""
        self._changes.give_up(TrainingFailed("the training was closed"))
        self._members.stop()
        self._calls.close_store()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self._members)

    @property
    def losses(self) -> dict[int, float]:
        """The losses that rank 0 has returned, by step."""
        return self._progress.losses

    @property
    def steps_done(self) -> int:
        """The number of steps that some rank has finished, including while training runs."""
        return self._progress.steps_done

    def __enter__(self) -> FaultTolerantTraining:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except MeshError as failure:
            if error is None:
                raise
            error.add_note(f"and the actors of the training did not stop cleanly: {failure}")

    def _prepare(self, failure: Failure | None) -> None:
        """Replace dead processes, restore the state of all ranks, and form a process group."""
        if not self._is_sharded:
            # Any rank can restore the ranks that join.
            self._change_members()
        self._replace_dead()
        places = self._calls.collect(self._calls.on_each("place"))
        for rank, place in places.items():
            self._members[rank].started(place)
        self.host_names = [member.host_name for member in self._members]
        step, source, damaged = self._restore()
        store = self._calls.open_store()
        from_disk = step if source == "disk" else None
        numbers = [member.number for member in self._members]
        joins = {
            rank: member.trainer.join.call_one(store, numbers, from_disk)
            for rank, member in enumerate(self._members)
        }
        self._calls.collect(joins)
        self._is_prepared = self._has_begun = True
        self._pauses, self._stop_step, self._step_on_disk = {}, None, None
        self.step = step
        if failure is not None:
            recovery = Recovery(
                failure.kind,
                failure.ranks,
                failure.reason,
                max(self.steps_done, step),
                step,
                source,
                damaged,
                failure.at,
                time.time() - failure.at,
            )
            self.recoveries.append(recovery)
            _log.info("mesh: training continues: %s", recovery)

    def _train(self, steps: int) -> None:
        """Train until the last step, until members change, or until something fails."""
        holders = holder_ranks([member.host for member in self._members])
        runs = {
            rank: member.trainer.train.call_one(
                self.step, steps, self._members[holders[rank]].holder
            )
            for rank, member in enumerate(self._members)
        }
        self._calls.collect_steps(runs, self._pause)
        reached = steps if self._stop_step is None else min(self._stop_step, steps)
        self.step = max(reached, self.step)

    def _pause(self) -> None:
        """Let all ranks stop at the same step if members should join or leave."""
        if self._stop_step is not None:
            return
        if not self._pauses:
            if not self._changes.are_due():
                return
            self._pauses = {
                rank: member.monitor.pause.call_one() for rank, member in enumerate(self._members)
            }
            wait(self._pauses.values(), timeout=POLL_S)
        if any(not one.done() or one.exception() is not None for one in self._pauses.values()):
            # A rank that does not reply is detected in the same way as without a pause.
            return
        self._stop_step = max(one.get() for one in self._pauses.values())
        for member in self._members:
            member.monitor.stop_at.broadcast(self._stop_step)

    def _change_members(self) -> None:
        """Let members join and leave, while no rank trains."""
        if self._pauses:
            # The ranks train again only in a new process group.
            self._is_prepared = False
        if not self._changes.are_due():
            return
        if self._is_sharded and not self._write_to_disk():
            self._changes.give_up(TrainingFailed("the checkpoint on disk could not be written"))
            return
        self._is_prepared = False
        for change in self._changes.take():
            if not change.joining and all(one in change.leaving for one in self._members):
                change.done.set_exception(ValueError("no rank would remain: add others first"))
                continue
            for member, place in zip(change.joining, change.places, strict=True):
                member.started(place.get())
            self._members.change(change.joining, change.leaving)
            change.done.set_result(None)
        self._progress.ranks_changed()
        _log.info("mesh: training continues on %d ranks", len(self._members))

    def _write_to_disk(self) -> bool:
        """Let all ranks write a checkpoint from which another number of ranks can continue."""
        self._calls.collect(self._calls.on_each("write_to_disk"))
        assert self._disk is not None
        if latest_on_disk(self._disk) != self.step:
            return False
        self._step_on_disk = self.step
        return True

    def _require_disk(self) -> None:
        if self._is_sharded and self._disk is None:
            raise ValueError(
                "the number of ranks of sharded states can only change by a checkpoint on disk: "
                "pass disk=DiskCheckpoints(folder)"
            )

    def _replace_dead(self) -> None:
        """Start dead processes again, on standby hosts if their host is dead."""
        replies = self._progress.request()
        members = list(self._members)
        wait(
            [replies[rank] for rank, one in enumerate(members) if one.has_started], timeout=REPLY_S
        )
        lost: dict[Member, HostDied] = {}
        for rank, member in enumerate(members):
            if not replies[rank].done():
                if not member.has_started:
                    continue
                self._calls.kill(rank)
            elif replies[rank].exception() is None:
                continue
            host = member.host
            if any(host == other.host for other in lost) and host >= 0:
                lost[member] = next(iter(lost.values()))
                continue
            try:
                member.replace()
            except HostDied as error:
                member.host = host
                lost[member] = error
            except RuntimeError as error:
                # The replacement of another rank of the same host has also restarted this rank.
                _log.debug("mesh: rank %d is alive: %s", rank, error)
        if lost:
            self._continue_without(lost)

    def _continue_without(self, lost: Mapping[Member, HostDied]) -> None:
        """Remove the ranks of hosts that cannot be replaced.

        Raises:
            TrainingFailed: Too few ranks would remain.
        """
        rank = next(rank for rank, member in enumerate(self._members) if member in lost)
        remaining = len(self._members) - len(lost)
        if self._min_ranks is None or remaining < self._min_ranks:
            raise TrainingFailed(
                f"rank {rank} cannot be replaced: its host is dead, and no standby worker is left"
            ) from next(iter(lost.values()))
        self._members.change((), lost)
        if self._is_sharded:
            # The parts of the state in memory belong to another number of ranks.
            assert self._disk is not None
            self._step_on_disk = latest_on_disk(self._disk)
            if self._step_on_disk is None:
                raise NoCheckpoint("a host is lost, and there is no checkpoint on disk yet")
        self._progress.ranks_changed()
        _log.warning(
            "mesh: a host is dead and no standby worker is left: training continues on %d ranks",
            remaining,
        )

    def _restore(self) -> tuple[int, str, int]:
        """Restore all ranks; return the step, its source, and the number of damaged copies."""
        if self._step_on_disk is not None:
            return self._step_on_disk, "disk", 0
        on_disk = None if self._disk is None else latest_on_disk(self._disk)
        if not self._has_begun:
            if on_disk is not None:
                # A previous program has trained up to this step.
                return on_disk, "disk", 0
            if self._is_sharded:
                # All ranks have created the same model, and have a part of it after they join.
                return 0, "memory", 0
            self._calls.collect(self._calls.on_each("begin"))
        held = self._calls.collect(
            {rank: one.holder.held.call_one() for rank, one in enumerate(self._members)}
        )
        copies = [copy for of_rank in held.values() for copy in of_rank]
        holders = {member.number: member.holder for member in self._members}
        numbers = list(holders)
        damaged: set[Copy] = set()
        damaged_count = 0
        while True:
            plan = plan_restore(copies, numbers, is_sharded=self._is_sharded, damaged=damaged)
            if plan is None:
                break
            results = self._calls.collect(
                {
                    rank: member.trainer.restore.call_one(
                        [(copy, holders[copy.holder]) for copy in plan.candidates[rank]]
                    )
                    for rank, member in enumerate(self._members)
                }
            )
            damaged_count += sum(len(problems) for problems, _ in results.values())
            lost = [rank for rank, (_, is_restored) in results.items() if not is_restored]
            if not lost:
                return plan.step, "memory", damaged_count
            for rank in lost:
                damaged.update(plan.candidates[rank])
        if on_disk is None:
            raise NoCheckpoint(
                "all copies of the state of some rank are lost, and there is no checkpoint on disk:"
                " pass disk=DiskCheckpoints(folder)"
            )
        return on_disk, "disk", damaged_count


def _is_on_event_loop() -> bool:
    """Return whether this thread runs an event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
