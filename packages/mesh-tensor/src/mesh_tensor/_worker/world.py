"""What a process knows beside its values: where it is, and the groups it is in."""

from __future__ import annotations

import copy
import itertools
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from mesh_core import Region
from mesh_tensor._errors import TensorError
from mesh_tensor._streams.borrow_exchange import Exchange
from mesh_tensor._worker.process_groups import new_group

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from mesh_tensor._worker.failure import FailedValue

__all__ = ["World"]


#: How often the groups of this process were begun here.
_meetings = 0


class World:
    """The place of a process among those of its engine, as one of its streams sees it.

    Attributes:
        rank: Which of them it is.
        values: The values of the stream, by slot.
        given: What the present batch brings.
        numbers: The floats of the present batch.
    """

    def __init__(self, rank: int, values: list[Any]) -> None:
        self.rank = rank
        self.values = values
        self.given: list[Any] = []
        self.numbers: Sequence[float] = ()
        #: Functions of the program, by the number of the plan that brought each.
        self.functions: dict[int, Callable[..., Any]] = {}
        #: What first calls gave that nobody has taken yet, by their tokens.
        self.held: dict[int, list[Any]] = {}
        self.torch_meshes: dict[tuple[bytes, str], DeviceMesh] = {}
        self._regions: dict[bytes, Region] = {}
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._store: TCPStore | None = None
        #: What its streams lend to each other.
        self.exchange = Exchange()
        self._lane = 0
        #: In which meeting of the processes its groups are, and those of its other streams.
        self._meeting = [0]

    def beside(self, lane: int) -> World:
        """Gives that of another stream of the process: with values and groups of its own."""
        made = World(self.rank, [])
        made.functions, made.held, made.exchange = self.functions, self.held, self.exchange
        made._lane, made._meeting = lane, self._meeting
        return made

    def propagate_failure(self, storages: Collection[int], failed_value: FailedValue) -> None:
        """Puts a failure in the place of all values in some memory."""
        values = self.values
        for slot, value in enumerate(values):
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in storages:
                values[slot] = failed_value
        self.exchange.propagate_failure(storages, failed_value)

    def within(self, values: list[Any], given: list[Any], numbers: Sequence[float]) -> World:
        """Gives the same place with other values: those of a trace while it is replayed."""
        inner = copy.copy(self)
        inner.values, inner.given, inner.numbers = values, given, numbers
        # Whoever replays it says what is lost outside of it.
        inner.exchange = Exchange()
        return inner

    def region(self, encoded: bytes) -> Region:
        """Gives a part of the processes."""
        found = self._regions.get(encoded)
        if found is None:
            found = self._regions[encoded] = Region.decode(encoded)
        return found

    def takes_part(self, encoded: bytes) -> bool:
        """Whether this process is in a part."""
        return self.rank in self.region(encoded)

    def peers(self, encoded: bytes, dims: Sequence[str]) -> list[int]:
        """Gives the ranks that differ from this one in these dimensions only, row by row."""
        region = self.region(encoded)
        index = region.index_of(self.rank)
        assert index is not None
        here = dict(zip(region.labels, region.coordinates(index), strict=True))
        ranks = []
        for there in itertools.product(*(range(region.size(dim)) for dim in dims)):
            chosen = {**here, **dict(zip(dims, there, strict=True))}
            ranks.append(region.select(**chosen).offset)
        return ranks

    def open_store(self) -> tuple[str, int]:
        """Begins the meeting point of all processes; gives its address."""
        name = socket.gethostname()
        try:
            address = socket.gethostbyname(name)
        except OSError:
            address = "127.0.0.1"
        self._store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
        return address, self._store.port

    def join(self, address: str, port: int, size: int) -> None:
        """Meets the others, so that there can be groups; waits for all of them."""
        global _meetings
        if dist.is_initialized():
            if not _meetings:
                # The program has its own groups there: they serve as well, if they are of all.
                _check_size(size)
                return
            # Those of a time when others lived. Nothing that is left from then gets what comes now.
            _meetings += 1
            dist.destroy_process_group()
        store = self._store or TCPStore(address, port, is_master=False, wait_for_workers=False)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(
            backend, store=store, rank=self.rank, world_size=size, timeout=timedelta(minutes=5)
        )
        _meetings = max(_meetings, 1)
        self._meeting[0] = _meetings

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Gives the group of these processes; all of them ask for it at the same point.

        Each stream has its own: what two streams do at a time is not to meet in one.
        """
        key = tuple(ranks)
        found = self._groups.get(key)
        if found is None:
            if self._meeting[0] != _meetings:
                # A stream of an engine that is over, which is still at work: these are not for it.
                raise TensorError("the processes have met anew, after one of them had died")
            ranks = sorted(key)
            if ranks != list(key):
                found = self.group(ranks)
            elif self._lane or ranks != list(range(dist.get_world_size())):
                found = new_group(ranks, self._lane)
            else:
                assert isinstance(dist.group.WORLD, dist.ProcessGroup)
                found = dist.group.WORLD
            self._groups[key] = found
        return found

    def outgoing(self, value: Any) -> Any:
        """Gives a value as it is sent to the program."""
        if isinstance(value, torch.Tensor):
            value = value.detach()
            if value.is_conj() or value.is_neg():
                value = value.resolve_conj().resolve_neg()
            return value.cpu()
        return value


def _check_size(size: int) -> None:
    if dist.get_world_size() != size:
        raise TensorError(
            f"torch.distributed was begun here for {dist.get_world_size()} processes, and there "
            f"are {size}: leave it to mesh-tensor, or begin it for all, in the order of ranks"
        )
