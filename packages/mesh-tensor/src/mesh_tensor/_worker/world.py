"""The state of a process other than its values: its rank and its process groups."""

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
from mesh_tensor._worker.borrow_exchange import BorrowExchange
from mesh_tensor._worker.process_groups import new_group
from mesh_tensor._worker.shared_devices import some_share_a_device

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from mesh_tensor._worker.failure import FailedValue

__all__ = ["World"]


#: How many times this module has initialized `torch.distributed` in this process.
_init_count = 0


class World:
    """A process among those of its engine, as one of its streams sees it.

    Attributes:
        rank: The rank of the process.
        values: The values of the stream, by slot.
        given: The values that the current batch carries.
        numbers: The floats of the current batch.
    """

    def __init__(self, rank: int, values: list[Any]) -> None:
        self.rank = rank
        self.values = values
        self.given: list[Any] = []
        self.numbers: Sequence[float] = ()
        #: Functions of the program, by the number of the compiled op that sent them.
        self.functions: dict[int, Callable[..., Any]] = {}
        #: The results of first calls that have not been adopted or dropped, by token.
        self.held: dict[int, list[Any]] = {}
        self.torch_meshes: dict[tuple[bytes, str], DeviceMesh] = {}
        self._regions: dict[bytes, Region] = {}
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._store: TCPStore | None = None
        #: The borrows between the streams of the process.
        self.exchange = BorrowExchange()
        self._stream_number = 0
        #: The generation of `torch.distributed` to which the groups belong; shared by all streams.
        self._generation = [0]

    def for_stream(self, stream_number: int) -> World:
        """Return the world of another stream of the process, with separate values and groups."""
        made = World(self.rank, [])
        made.functions, made.held, made.exchange = self.functions, self.held, self.exchange
        made._stream_number, made._generation = stream_number, self._generation
        return made

    def propagate_failure(self, storages: Collection[int], failed_value: FailedValue) -> None:
        """Replace all values in some storages by a failure."""
        values = self.values
        for slot, value in enumerate(values):
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in storages:
                values[slot] = failed_value
        self.exchange.propagate_failure(storages, failed_value)

    def for_trace(self, values: list[Any], given: list[Any], numbers: Sequence[float]) -> World:
        """Return the same world with other values: the values of a trace during a replay."""
        inner = copy.copy(self)
        inner.values, inner.given, inner.numbers = values, given, numbers
        # The replay itself reports the values that are lost outside of the trace.
        inner.exchange = BorrowExchange()
        return inner

    def region(self, encoded: bytes) -> Region:
        """Return the decoded region."""
        found = self._regions.get(encoded)
        if found is None:
            found = self._regions[encoded] = Region.decode(encoded)
        return found

    def is_in(self, encoded: bytes) -> bool:
        """Return whether this process is in a region."""
        return self.rank in self.region(encoded)

    def peers(self, encoded: bytes, dims: Sequence[str]) -> list[int]:
        """Return the ranks that differ from this one only in `dims`, in row-major order."""
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
        """Start the store for the rendezvous of all processes; return its address."""
        name = socket.gethostname()
        try:
            address = socket.gethostbyname(name)
        except OSError:
            address = "127.0.0.1"
        self._store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
        return address, self._store.port

    def join(self, address: str, port: int, size: int) -> None:
        """Initialize `torch.distributed`; wait for all processes."""
        global _init_count
        if dist.is_initialized():
            if not _init_count:
                # The user's program has initialized it. Its groups are used if they include all
                # processes.
                _check_size(size)
                return
            # The existing groups are from before a process died. Code that still runs for that
            # engine must not use the new groups.
            _init_count += 1
            dist.destroy_process_group()
        store = self._store or TCPStore(address, port, is_master=False, wait_for_workers=False)
        is_shared = some_share_a_device(store, size)
        on_device = torch.cuda.is_available() and not is_shared
        backend = "cpu:gloo,cuda:nccl" if on_device else "gloo"
        dist.init_process_group(
            backend, store=store, rank=self.rank, world_size=size, timeout=timedelta(minutes=5)
        )
        _init_count = max(_init_count, 1)
        self._generation[0] = _init_count

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Return the group of these processes; all of them request it at the same point.

        Each stream has its own groups, so that concurrent operations of two streams do not mix.
        """
        key = tuple(ranks)
        found = self._groups.get(key)
        if found is None:
            if self._generation[0] != _init_count:
                # This is a stream of an earlier engine that still runs; it must not use the new
                # groups.
                raise TensorError("the processes were reconnected after one of them died")
            ranks = sorted(key)
            if ranks != list(key):
                found = self.group(ranks)
            elif self._stream_number or ranks != list(range(dist.get_world_size())):
                found = new_group(ranks, self._stream_number)
            else:
                assert isinstance(dist.group.WORLD, dist.ProcessGroup)
                found = dist.group.WORLD
            self._groups[key] = found
        return found

    def outgoing(self, value: Any) -> Any:
        """Return a value in the form in which it is sent to the program."""
        if isinstance(value, torch.Tensor):
            value = value.detach()
            if value.is_conj() or value.is_neg():
                value = value.resolve_conj().resolve_neg()
            return value.cpu()
        return value


def _check_size(size: int) -> None:
    if dist.get_world_size() != size:
        raise TensorError(
            f"torch.distributed was initialized for {dist.get_world_size()} processes instead of"
            f" {size}: leave it to mesh-tensor, or initialize it for all, in the order of ranks"
        )
