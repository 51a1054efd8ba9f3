"""The actors in each process of a training: one trains, and two reply while it trains."""

from __future__ import annotations

import asyncio
import random
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from mesh_core import Actor, MeshError, concurrent_endpoint, current_rank, endpoint
from mesh_core.spi import current_process
from mesh_tensor._training.cpu_wait import cpu_wait_s
from mesh_tensor._training.disk_checkpoint import load_from_disk, save_to_disk
from mesh_tensor._training.memory_checkpoints import MemoryCheckpoints
from mesh_tensor._training.process_group import abort_group, join_group, leave_group
from mesh_tensor._training.rendezvous_store import MeshStore, StoreServer
from mesh_tensor._training.restore_plan import Copy
from mesh_tensor._training.state_codec import check_state, decode_state, device_meshes
from mesh_tensor._training.step_limit import StepLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mesh_core import Future
    from mesh_rdma import RDMABuffer
    from mesh_tensor._training.disk_checkpoint import DiskCheckpoints
    from mesh_tensor._training.program import TrainingProgram

__all__ = [
    "CheckpointHolder",
    "Progress",
    "RankMonitor",
    "RankSettings",
    "StepFailed",
    "Trainer",
    "damage_checkpoints",
]

_COPY_TIMEOUT_S = 60.0
# How long copies may continue after the collectives were aborted. It takes seconds until a copy
# from an unreachable host fails.
_COPY_GRACE_S = 0.2
# Programs are created with the seed of this step number.
_BEFORE_STEPS = -1


@dataclass(frozen=True)
class RankSettings:
    """The settings that all ranks of a training share."""

    backend: str
    seed: int
    is_sharded: bool
    disk: DiskCheckpoints | None


@dataclass(frozen=True)
class Progress:
    """The progress of a rank."""

    step: int
    """The number of steps that it has finished."""
    losses: tuple[tuple[int, float], ...]
    """The losses of its last steps, by step."""
    longest_step_s: float
    cpu_wait_s: float
    """How long threads of the process were ready to run, but waited for a processor."""


@dataclass(frozen=True)
class StepFailed:
    """The failure that ended a rank before the last step."""

    step: int
    text: str
    trace: str
    is_of_group: bool
    """Whether an operation of the process group failed, as in all ranks after one of them fails."""


@dataclass
class _Session:
    """The state that the actors of a process share."""

    own: MemoryCheckpoints = field(default_factory=MemoryCheckpoints)
    copies: dict[int, MemoryCheckpoints] = field(default_factory=dict)
    step: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    longest_step_s: float = 0.0
    is_aborted: bool = False
    limit: StepLimit = field(default_factory=StepLimit)


# One training at a time runs in a process.
_session = _Session()


class Trainer(Actor):
    """Runs the program of one rank."""

    def __init__(
        self, create: Callable[[], TrainingProgram], settings: RankSettings, first: int
    ) -> None:
        # A previous training of the process is over.
        global _session
        self._session = _session = _Session()
        self._settings = settings
        # During a call to a slice, `current_rank` returns the rank in the slice.
        self._member = first + current_rank().rank
        self._rank = 0
        self._restored: memoryview | None = None
        self._copying: Future[None] | None = None
        _seed(settings.seed, _BEFORE_STEPS, 0)
        self._program = create()

    @endpoint
    def place(self) -> tuple[int, str]:
        """Return the number of the host in the job, and its name."""
        location = current_process.location()
        return location.host, location.host_name

    @endpoint
    def begin(self) -> None:
        """Store the state before the first step."""
        _session.own.save(0, self._program.state_dict())

    @endpoint
    def restore(
        self, candidates: Sequence[tuple[Copy, CheckpointHolder]]
    ) -> tuple[list[str], bool]:
        """Read the first candidate that is intact; `join` will load it.

        Args:
            candidates: Copies, each with the actor that holds it.

        Returns:
            Why candidates were not read, and whether one was.
        """
        problems: list[str] = []
        for copy, holder in candidates:
            try:
                self._restored = _read(copy, holder)
            except MeshError as error:
                problems.append(str(error))
            else:
                _session.step = copy.step
                return problems, True
        return problems, False

    @endpoint
    def join(self, server: StoreServer, members: Sequence[int], from_disk: int | None) -> None:
        """Form the process group, and load the state that was read, or a checkpoint from disk.

        Args:
            server: The store of the group.
            members: The numbers of the members, by rank.
            from_disk: The step of the checkpoint on disk; None for the state that was read.
        """
        _session.is_aborted = False
        _session.limit = StepLimit()
        self._rank = members.index(self._member)
        join_group(MeshStore(server), self._rank, len(members), self._settings.backend)
        self._program.join()
        if from_disk is not None:
            assert self._settings.disk is not None
            state = dict(self._program.state_dict())
            load_from_disk(self._settings.disk, from_disk, state)
            self._program.load_state_dict(state)
            _session.step = from_disk
        elif self._restored is not None:
            meshes = device_meshes(self._program.state_dict()) if self._settings.is_sharded else {}
            self._program.load_state_dict(decode_state(self._restored, meshes))
        self._restored = None
        for gone in _session.copies.keys() - set(members):
            _session.copies.pop(gone).drop_after(-1)
        # Earlier checkpoints of steps that are repeated are not valid any more.
        for checkpoints in (_session.own, *_session.copies.values()):
            checkpoints.drop_after(_session.step)
        if _session.step not in _session.own.steps():
            _session.own.save(_session.step, self._program.state_dict())

    @endpoint
    def train(self, first: int, last: int, holder: CheckpointHolder) -> StepFailed | None:
        """Train the steps from `first` to before `last`, or until the program stops it.

        Args:
            first: The first step.
            last: The step after the last one.
            holder: Keeps copies of the checkpoints of this rank.
        """
        for step in range(first, last):
            began = time.monotonic()
            _seed(self._settings.seed, step, self._rank)
            try:
                if not _session.limit.begin(step):
                    break
                loss = self._program.train_step(step)
                self._save(step + 1, self._program.state_dict(), holder)
            except Exception as error:
                return _failure(step, error)
            if loss is not None:
                _session.losses[step] = float(loss)
            _session.step = step + 1
            _session.longest_step_s = max(_session.longest_step_s, time.monotonic() - began)
        return None

    @endpoint
    def write_to_disk(self) -> None:
        """Write a checkpoint of the current step; all ranks do this together."""
        assert self._settings.disk is not None
        save_to_disk(self._settings.disk, _session.step, self._program.state_dict())

    @endpoint
    def state(self) -> dict[str, Any]:
        """Return the state."""
        return dict(self._program.state_dict())

    def __cleanup__(self, error: Exception | None) -> None:
        # If the actor ends late, the process group may be that of the next training.
        if _session is self._session:
            leave_group()

    def _save(self, step: int, state: Mapping[str, Any], holder: CheckpointHolder) -> None:
        """Store the state in memory, request a copy of it, and store it on disk if due."""
        memory = _session.own.save(step, state)
        # Ranks with equal states need no copy of each step, so they do not wait for it.
        if self._copying is None or self._copying.done():
            request = holder.keep.call_one(self._member, step, memory)
            self._copying = request
            if self._settings.is_sharded:
                request.get()
        disk = self._settings.disk
        if disk is not None and step % disk.every == 0:
            save_to_disk(disk, step, state)


class CheckpointHolder(Actor):
    """Keeps copies of the checkpoints of other ranks."""

    def __init__(self, first: int) -> None:
        self._member = first + current_rank().rank

    @endpoint
    def keep(self, member: int, step: int, memory: RDMABuffer) -> None:
        """Copy a checkpoint; store nothing if its source no longer has it."""
        copies = _session.copies.setdefault(member, MemoryCheckpoints())
        try:
            copies.copy(step, memory, _COPY_TIMEOUT_S)
        except MeshError:
            return

    @endpoint
    def held(self) -> list[Copy]:
        """Return which checkpoints are in the memory of this process."""
        here = self._member
        own = [Copy(here, here, step) for step in _session.own.steps()]
        copies = [
            Copy(member, here, step)
            for member, checkpoints in _session.copies.items()
            for step in checkpoints.steps()
        ]
        return [*own, *copies]

    @endpoint
    def memory(self, member: int, step: int) -> RDMABuffer:
        """Return the memory of a checkpoint here.

        Raises:
            CheckpointCorrupt: No such checkpoint is kept here.
        """
        if member == self._member:
            return _session.own.memory(step)
        return _session.copies.get(member, MemoryCheckpoints()).memory(step)


class RankMonitor(Actor):
    """Replies while the rank trains."""

    async def __init__(self) -> None:  # type: ignore[misc]
        self._is_over = asyncio.Event()

    @concurrent_endpoint
    async def progress(self, received: int) -> Progress:
        """Return the progress of the rank, and its losses from step `received` on."""
        for step in list(_session.losses):
            if step < received:
                del _session.losses[step]
        losses = tuple(_session.losses.items())
        return Progress(_session.step, losses, _session.longest_step_s, cpu_wait_s())

    @concurrent_endpoint
    async def watch(self) -> None:
        """Do not reply before the training or the process ends."""
        await self._is_over.wait()

    @concurrent_endpoint
    async def end_watch(self) -> None:
        """Let `watch` return."""
        self._is_over.set()

    @concurrent_endpoint
    async def pause(self) -> int:
        """Let the rank begin no more steps until `stop_at`; return how many it has begun."""
        return _session.limit.pause()

    @concurrent_endpoint
    async def stop_at(self, step: int) -> None:
        """Let the rank continue, and stop before this step."""
        _session.limit.stop_at(step)

    @concurrent_endpoint
    async def abort(self) -> None:
        """End the collectives of the rank with an error."""
        _session.is_aborted = True
        _session.limit.abort()
        await asyncio.to_thread(abort_group)
        for checkpoints in list(_session.copies.values()):
            await asyncio.to_thread(checkpoints.end_copy, _COPY_GRACE_S)


def damage_checkpoints() -> None:
    """Change a bit of each checkpoint in the memory of this process.

    Call it in a rank, for example in `train_step`, to test that damaged copies are not loaded.
    """
    for checkpoints in (_session.own, *_session.copies.values()):
        checkpoints.damage()


def _read(copy: Copy, holder: CheckpointHolder) -> memoryview:
    """Read a checkpoint in the memory of some process.

    Raises:
        CheckpointCorrupt: It is damaged, or no longer kept.
    """
    source = holder.memory.call_one(copy.member, copy.step).get(_COPY_TIMEOUT_S)
    memory = memoryview(bytearray(source.size()))
    source.read_into(memory, timeout=_COPY_TIMEOUT_S).get()
    check_state(memory, copy.step)
    return memory


def _failure(step: int, error: Exception) -> StepFailed:
    is_of_group = _session.is_aborted or isinstance(error, torch.distributed.DistError)
    is_of_group = is_of_group or "gloo" in str(error)
    text = "".join(traceback.format_exception_only(error)).strip()
    return StepFailed(step, text, "".join(traceback.format_exception(error)), is_of_group)


def _seed(*parts: int) -> None:
    seed = hash(parts) & 0x7FFF_FFFF
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
