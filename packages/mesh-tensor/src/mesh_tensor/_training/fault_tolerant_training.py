"""The loop of the program that owns a training: run, find out what failed, repair, continue."""

from __future__ import annotations

import functools
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from mesh_core import HostDied, ProcDied, this_proc, wait
from mesh_tensor._training.disk_checkpoint import latest_on_disk
from mesh_tensor._training.errors import NoCheckpoint, TrainingFailed
from mesh_tensor._training.rank_actors import (
    CheckpointHolder,
    RankMonitor,
    RankSettings,
    StepFailed,
    Trainer,
)
from mesh_tensor._training.rendezvous_store import StoreServer
from mesh_tensor._training.restore_plan import plan_restore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from mesh_core import Future, ProcMesh
    from mesh_tensor._training.disk_checkpoint import DiskCheckpoints
    from mesh_tensor._training.program import TrainingProgram
    from mesh_tensor._training.restore_plan import Copy

__all__ = ["FaultTolerantTraining", "Recovery"]

T = TypeVar("T")

_POLL_S = 0.1
# How long ranks may take to end a step after their collectives were aborted: so many times the
# longest step, but at least so long. A rank that takes longer hangs.
_ABORT_STEPS, _ABORT_S = 3, 1.0
_REPLY_S = 2.0
# Ranks hang if no step ends for this many times the longest step so far, but at least so long.
_STALL_STEPS, _STALL_S = 20, 5.0
# The first step may compile, load data and so on.
_FIRST_STALL_S = 120.0
_SETUP_S = 120.0
# Modules with which the processes start that replace others. The first optimizer of a process
# imports the first one, which takes seconds.
_PRELOADED = ("torch._dynamo", "torch.distributed", "mesh_tensor._training.rank_actors")
_log = logging.getLogger("mesh_tensor")


@dataclass(frozen=True)
class Recovery:
    """A failure of training, and the recovery from it.

    Attributes:
        kind: What failed: `process`, `host`, `hang`, or `exception` in the program.
        ranks: The ranks that failed.
        reason: A description of the failure.
        step: The last step that any rank had finished.
        resumed_step: The step from which training continued.
        source: Where the state came from: `memory` or `disk`.
        damaged_copies: The number of copies in memory that were damaged and not used.
        reported_at: When the failure was reported, in seconds since the epoch.
        recovery_s: Seconds from then until training continued.
    """

    kind: str
    ranks: tuple[int, ...]
    reason: str
    step: int
    resumed_step: int
    source: str
    damaged_copies: int
    reported_at: float
    recovery_s: float

    @property
    def lost_steps(self) -> int:
        """The number of steps that had to be repeated."""
        return max(self.step - self.resumed_step, 0)


@dataclass(frozen=True)
class _Failure:
    kind: str
    ranks: tuple[int, ...]
    reason: str
    error: BaseException | None
    at: float


class FaultTolerantTraining:
    """Trains on the processes of a mesh, and continues after failures without a restart.

    Each rank keeps its state of the last two steps in memory, and a process on another host keeps
    copies. When a process or a host dies, a rank hangs or a step raises, the collectives of the
    other ranks are aborted, what died is replaced, all ranks load the latest state that is
    complete, and a new process group is formed. Processes that survive are not restarted. Steps are
    repeated with the same random numbers, so that the result is the one of an undisturbed run if
    the program is deterministic.

    Args:
        procs: The processes; ranks are those of the flattened mesh. Standby workers of their hosts
            replace hosts that die.
        program: The class of the `TrainingProgram`, or a function that creates one.
        *args: Its arguments.
        backend: The backend of `torch.distributed`.
        seed: Seeds the random numbers of each step.
        is_sharded: Whether each rank has a state of its own, as with FSDP. Otherwise all ranks have
            equal states, as with DDP, and any of them restores any other.
        disk: Where checkpoints are written to for the case that all copies in memory are lost. If
            there is a checkpoint at the start, training continues from it.
        stall_timeout_s: How long no step may end before ranks are considered to hang, not counting
            the time that a rank waits for a processor. Default: 20 times the longest step, at
            least 5 s.
        attempts: How often a step may fail before training ends with `TrainingFailed`.
        **kwargs: Keyword arguments of the program.

    Attributes:
        recoveries: The recoveries so far.
        losses: The losses that rank 0 has returned, by step.
        step: The number of steps that all ranks had finished when training last paused.
        host_names: The name of the host of each rank, once training has begun.
        steps_done: The number of steps that some rank has finished, also while training runs.

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
        **kwargs: Any,
    ) -> None:
        if attempts < 1:
            raise ValueError(f"attempts={attempts} is not positive")
        if stall_timeout_s is not None and stall_timeout_s <= 0:
            raise ValueError(f"stall_timeout_s={stall_timeout_s} is not positive")
        self.recoveries: list[Recovery] = []
        self.losses: dict[int, float] = {}
        self.step: int = 0
        self.steps_done: int = 0
        self.host_names: list[str] = []
        self._procs = procs
        self._is_sharded = is_sharded
        self._disk = disk
        self._stall_timeout_s = stall_timeout_s
        self._attempts = attempts
        self._size = len(procs)
        procs.host_mesh.preload(*_PRELOADED)
        flat = procs.flatten("rank")
        self._holders: Any = flat.spawn("checkpoint_holders", CheckpointHolder, restart="temporary")
        self._monitors: Any = flat.spawn("rank_monitors", RankMonitor, restart="temporary")
        create = functools.partial(program, *args, **kwargs)
        settings = RankSettings(backend, seed, is_sharded, disk)
        self._trainers: Any = flat.spawn(
            "trainers", Trainer, create, settings, self._holders, restart="temporary"
        )
        self._ranks = [self._trainers.slice(rank=rank) for rank in range(self._size)]
        self._holder_ranks: list[int] = []
        self._server: Any = None
        # The ranks whose actors have replied once; others may still start.
        self._started: set[int] = set()
        self._has_begun = self._is_prepared = False
        self._began = time.monotonic()
        # How long each rank has waited for a processor: at the last end of a step, and now.
        self._cpu_waits_before: dict[int, float] = {}
        self._cpu_waits: dict[int, float] = {}
        self._longest_step_s = 0.0

    def run(self, steps: int) -> None:
        """Train until this number of steps is reached, whatever fails meanwhile.

        Raises:
            TrainingFailed: The same step has failed too often, or a host has died and no standby
                worker is left.
            NoCheckpoint: All copies of some state are lost.
        """
        failure: _Failure | None = None
        failed_at, attempts = -1, 0
        while True:
            try:
                if not self._is_prepared:
                    self._prepare(failure)
                self._train(steps)
            except _Interrupted as interrupted:
                # If the recovery fails as well, the recovery of the first failure is not over.
                if failure is None or self._is_prepared:
                    failure = interrupted.failure
                self._is_prepared = False
            else:
                return
            attempts = attempts + 1 if self.steps_done == failed_at else 1
            failed_at = self.steps_done
            if attempts >= self._attempts:
                raise TrainingFailed(
                    f"step {failed_at} has failed {attempts} times: {failure.reason}"
                ) from failure.error

    def state_dict(self, rank: int = 0) -> Mapping[str, Any]:
        """Return the state of a rank, between two calls of `run`."""
        state: Mapping[str, Any] = self._trainers.slice(rank=rank).state.call_one().get()
        return state

    def close(self) -> None:
        """Stop the actors of the training; the processes remain."""
        for mesh in (self._trainers, self._monitors, self._holders, self._server):
            if mesh is not None:
                mesh.stop().get()

    def __enter__(self) -> FaultTolerantTraining:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _prepare(self, failure: _Failure | None) -> None:
        """Replace what is dead, restore the state of all ranks, and form a process group."""
        self._replace_dead()
        places = self._collect(self._on_each("place"), _SETUP_S)
        self._started = set(places)
        previous, self.host_names = self.host_names, [places[rank][1] for rank in range(self._size)]
        self._holder_ranks = _holder_ranks([places[rank][0] for rank in range(self._size)])
        step, source, damaged = self._restore()
        if self._server is not None:
            self._server.stop().get()
        self._server = this_proc().spawn("rendezvous_store", StoreServer)
        from_disk = step if source == "disk" else None
        joins = {
            rank: trainer.join.call_one(self._server, rank, self._size, from_disk)
            for rank, trainer in enumerate(self._ranks)
        }
        self._collect(joins, _SETUP_S)
        if previous and previous != self.host_names:
            # A standby worker has not imported them yet.
            self._procs.host_mesh.preload(*_PRELOADED)
        self._is_prepared = True
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
        """Train until the last step, or until something fails."""
        runs = {
            rank: trainer.train.call_one(self.step, steps, self._holder_ranks[rank])
            for rank, trainer in enumerate(self._ranks)
        }
        self._start_waiting()
        self._collect(runs, None)
        self._poll()
        self.step = max(steps, self.step)

    def _replace_dead(self) -> None:
        """Start dead processes again, on standby hosts if their host is dead."""
        replies = self._on_each("progress", self._monitors)
        running = [reply for rank, reply in replies.items() if rank in self._started]
        wait(running, timeout=_REPLY_S)
        for rank, reply in replies.items():
            if not reply.done():
                if rank not in self._started:
                    continue
                self._kill(rank)
            elif reply.exception() is None:
                continue
            self._started.discard(rank)
            try:
                self._procs.replace(rank)
            except HostDied as error:
                raise TrainingFailed(
                    f"rank {rank} cannot be replaced: its host is dead, and no standby worker is "
                    "left"
                ) from error
            except RuntimeError as error:
                # Another rank of the same host has brought this one back.
                _log.debug("mesh: rank %d is alive: %s", rank, error)

    def _restore(self) -> tuple[int, str, int]:
        """Restore all ranks; return the step, where it came from, and the damaged copies."""
        on_disk = None if self._disk is None else latest_on_disk(self._disk)
        if not self._has_begun:
            if on_disk is not None:
                # A previous program has trained so far.
                self._has_begun = True
                return on_disk, "disk", 0
            self._collect(self._on_each("begin"), _SETUP_S)
            self._has_begun = True
        holders = self._collect(self._on_each("held", self._holders), _SETUP_S)
        copies = [copy for held in holders.values() for copy in held]
        damaged: set[Copy] = set()
        damaged_count = 0
        while True:
            plan = plan_restore(copies, self._size, is_sharded=self._is_sharded, damaged=damaged)
            if plan is None:
                break
            results = self._collect(
                {
                    rank: trainer.restore.call_one(plan.candidates[rank])
                    for rank, trainer in enumerate(self._ranks)
                },
                _SETUP_S,
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

    def _on_each(self, name: str, mesh: Any = None) -> dict[int, Future[Any]]:
        """Call an endpoint without arguments on each rank."""
        mesh = self._trainers if mesh is None else mesh
        return {rank: getattr(mesh.slice(rank=rank), name).call_one() for rank in range(self._size)}

    def _collect(self, futures: Mapping[int, Future[T]], limit_s: float | None) -> dict[int, T]:
        """Return the results of all ranks.

        Args:
            futures: The calls, by rank.
            limit_s: The time limit in seconds. None: until the steps make no progress.

        Raises:
            _Interrupted: A rank has failed or hangs. No rank waits for another one any more.
        """
        until = None if limit_s is None else time.monotonic() + limit_s
        left = dict(futures)
        is_late = False
        while left and not is_late:
            wait(left.values(), first=1, timeout=_POLL_S)
            done = [rank for rank, future in left.items() if future.done()]
            if any(_has_failed(left.pop(rank)) for rank in done):
                break
            if until is None:
                self._poll()
                is_late = self._has_stalled()
            else:
                is_late = time.monotonic() >= until
        else:
            if not is_late:
                return {rank: future.get() for rank, future in futures.items()}
        reported_at = time.time()
        hung = self._abort(futures)
        raise _Interrupted(_described(futures, hung, reported_at))

    def _abort(self, futures: Mapping[int, Future[Any]]) -> list[int]:
        """End what the ranks do, and kill those that do not end; return them."""
        self._monitors.abort.broadcast()
        if self._server is not None:
            self._server.stop()
        limit_s = max(_ABORT_STEPS * self._longest_step_s, _ABORT_S)
        self._start_waiting()
        while self._waited_s() < limit_s and wait(futures.values(), timeout=_POLL_S).pending:
            self._poll()
        hung = [rank for rank, future in futures.items() if not future.done()]
        for rank in hung:
            self._kill(rank)
        wait([futures[rank] for rank in hung], timeout=_REPLY_S)
        self._poll()
        return hung

    def _kill(self, rank: int) -> None:
        with suppress(HostDied):
            self._procs.kill(rank)

    def _poll(self) -> None:
        """Collect the progress of the ranks that reply."""
        replies = self._on_each("progress", self._monitors)
        wait(replies.values(), timeout=_POLL_S)
        for rank, reply in replies.items():
            if not reply.done() or reply.exception() is not None:
                continue
            progress = reply.get()
            if rank == 0:
                self.losses.update(progress.losses)
            self._cpu_waits[rank] = progress.cpu_wait_s
            if progress.step > self.steps_done:
                self.steps_done = progress.step
                self._start_waiting()
            self._longest_step_s = max(self._longest_step_s, progress.longest_step_s)

    def _start_waiting(self) -> None:
        self._began = time.monotonic()
        self._cpu_waits_before = dict(self._cpu_waits)

    def _waited_s(self) -> float:
        """Return how long no step has ended, without the time that a rank waited for a processor.

        On a busy machine, a step may take many times as long as before.
        """
        waits = (
            wait_s - self._cpu_waits_before.get(rank, wait_s)
            for rank, wait_s in self._cpu_waits.items()
        )
        return time.monotonic() - self._began - max(waits, default=0.0)

    def _has_stalled(self) -> bool:
        limit_s = self._stall_timeout_s
        if limit_s is None:
            usual_s = max(_STALL_STEPS * self._longest_step_s, _STALL_S)
            limit_s = usual_s if self._longest_step_s else _FIRST_STALL_S
        return self._waited_s() >= limit_s


class _Interrupted(Exception):
    def __init__(self, failure: _Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def _has_failed(future: Future[Any]) -> bool:
    return future.exception() is not None or isinstance(future.get(), StepFailed)


def _described(futures: Mapping[int, Future[Any]], hung: Sequence[int], at: float) -> _Failure:
    """Describe what failed first, given that all ranks have ended."""
    if hung:
        reason = f"rank {', '.join(map(str, hung))} made no progress and was killed"
        return _Failure("hang", tuple(hung), reason, None, at)
    errors = {rank: error for rank, future in futures.items() if (error := future.exception())}
    for kind, cls in (("host", HostDied), ("process", ProcDied), ("exception", Exception)):
        found = {rank: error for rank, error in errors.items() if isinstance(error, cls)}
        if found:
            first = next(iter(found.values()))
            return _Failure(kind, tuple(found), str(first), first, at)
    failed = {
        rank: result
        for rank, future in futures.items()
        if isinstance(result := future.get(), StepFailed)
    }
    own = {rank: result for rank, result in failed.items() if not result.is_of_group}
    rank, result = next(iter((own or failed).items()))
    kind = "exception" if own else "process group"
    return _Failure(
        kind, tuple(own or failed), f"rank {rank}: {result.text}", RuntimeError(result.trace), at
    )


def _holder_ranks(hosts: Sequence[int]) -> list[int]:
    """Return for each rank the one that keeps its copies: if possible, on the next host."""
    size = len(hosts)
    others = [
        [rank + step for step in range(1, size) if hosts[(rank + step) % size] != host]
        for rank, host in enumerate(hosts)
    ]
    distances = {rank: found[0] - rank if found else 1 for rank, found in enumerate(others)}
    # Equal distances spread the copies evenly.
    distance = max(distances.values(), default=1)
    return [(rank + distance) % size for rank in range(size)]
