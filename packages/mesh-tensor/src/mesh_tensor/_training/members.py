"""The processes that take part in a training, whose ranks change when some join or leave."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mesh_core import MeshStopped, ProcMesh, wait
from mesh_core.spi import current_process
from mesh_tensor._training.rank_actors import CheckpointHolder, RankMonitor, Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from mesh_core import Future, HostMesh
    from mesh_tensor._training.program import TrainingProgram
    from mesh_tensor._training.rank_actors import RankSettings

__all__ = ["Member", "Members", "holder_ranks"]

# Modules that are preloaded in replacement processes. The first optimizer of a process imports the
# first module, which takes seconds.
_PRELOADED = ("torch._dynamo", "torch.distributed", "mesh_tensor._training.rank_actors")
# The time that ranks have to reply before they are stopped, in seconds.
_END_S = 10.0


@dataclass(eq=False)
class Member:
    """A process of a training. Its rank is its position among the members."""

    number: int
    """Identifies it in the training; copies of checkpoints are labelled with it."""
    procs: ProcMesh
    """The processes with which it was added, flattened."""
    index: int
    """Its rank in `procs`."""
    trainer: Any
    monitor: Any
    holder: Any
    host: int = -1
    """The number of its host in the job; -1 before its actors have replied."""
    host_name: str = ""

    @property
    def has_started(self) -> bool:
        """Whether its actors have replied since its process was started."""
        return self.host >= 0

    def started(self, place: tuple[int, str]) -> None:
        """Record the number and the name of the host, as reported by its actors."""
        self.host, self.host_name = place

    def replace(self) -> None:
        """Start the process again after it has died."""
        self.host = -1
        self.procs.replace(self.index)
        watch(self.monitor)


class Members:
    """The members of a training, by rank.

    Args:
        create: Creates the program of a rank.
        module: The name of the module of the program, if it has one.
        settings: The settings of all ranks.
    """

    def __init__(
        self, create: Callable[[], TrainingProgram], module: str | None, settings: RankSettings
    ) -> None:
        self._create = create
        self._settings = settings
        # Hosts import the modules of the main script in any case. A class whose module has a name
        # that cannot be imported is sent by value.
        name = module or ""
        is_importable = all(part.isidentifier() for part in name.split("."))
        is_preloaded = is_importable and name != "__main__"
        self._preloaded = (*_PRELOADED, name) if is_preloaded else _PRELOADED
        self._meshes: list[Any] = []
        self._all: list[Member] = []
        self._count = 0
        # Deaths of processes that have left the training must be received, too.
        self._left: list[Member] = []

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._all)

    def __getitem__(self, rank: int) -> Member:
        return self._all[rank]

    def start(self, procs: ProcMesh) -> list[Member]:
        """Start the actors of a training in processes that are not members yet."""
        procs.host_mesh.preload(*self._preloaded)
        flat = procs.flatten("rank")
        first, self._count = self._count, self._count + len(flat)
        options = {"restart": "temporary"}
        holders: Any = flat.spawn("checkpoint_holders", CheckpointHolder, first, **options)
        monitors: Any = flat.spawn("rank_monitors", RankMonitor, **options)
        trainers: Any = flat.spawn(
            "trainers", Trainer, self._create, self._settings, first, **options
        )
        self._meshes += [holders, monitors, trainers]
        for index in range(len(flat)):
            watch(monitors.slice(rank=index))
        return [
            Member(
                first + index,
                flat,
                index,
                trainers.slice(rank=index),
                monitors.slice(rank=index),
                holders.slice(rank=index),
            )
            for index in range(len(flat))
        ]

    def change(self, joining: Sequence[Member], leaving: Collection[Member]) -> None:
        """Add members as the last ranks, and remove others; the ranks after them move up."""
        # Another thread may iterate over the previous list.
        self._all = [*(one for one in self._all if one not in leaving), *joining]
        self._left += leaving

    def on(self, where: HostMesh | ProcMesh) -> list[Member]:
        """Return the members among processes, or on hosts."""
        if isinstance(where, ProcMesh):
            flat = where.flatten("rank")
            chosen = {flat.slice(rank=index) for index in range(len(flat))}
            return [one for one in self._all if one.procs.slice(rank=one.index) in chosen]
        hosts = set(current_process.host_numbers(where))
        return [member for member in self._all if member.host in hosts]

    def stop(self) -> None:
        """Stop the actors; the processes remain."""
        replies: list[Future[Any]] = []
        for member in (*self._all, *self._left):
            # Processes that have left may have been stopped.
            with suppress(MeshStopped):
                replies.append(member.monitor.end_watch.call_one())
                if not member.has_started:
                    # Its trainer may still import the program.
                    replies.append(member.trainer.place.call_one())
        for reply in replies:
            reply.add_done_callback(_receive)
        # The grace period of the stop begins when no rank is busy with something else.
        wait(replies, timeout=_END_S)
        for mesh in reversed(self._meshes):
            mesh.stop().get()


def watch(monitor: RankMonitor) -> None:
    """Receive the death of a process, so that it is not reported as unhandled.

    It may occur while no call waits for the process: between two calls, or after it has left.
    """
    monitor.watch.call_one().add_done_callback(_receive)


def _receive(ended: Future[Any]) -> None:
    ended.exception()


def holder_ranks(hosts: Sequence[int]) -> list[int]:
    """Return for each rank the rank that keeps its copies, if possible on the next host."""
    size = len(hosts)
    others = [
        [rank + step for step in range(1, size) if hosts[(rank + step) % size] != host]
        for rank, host in enumerate(hosts)
    ]
    distances = {rank: found[0] - rank if found else 1 for rank, found in enumerate(others)}
    # Equal distances spread the copies evenly.
    distance = max(distances.values(), default=1)
    return [(rank + distance) % size for rank in range(size)]
