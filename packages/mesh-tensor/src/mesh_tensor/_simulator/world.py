"""Simulated processes: the contents of their memory, and the clocks of their devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mesh_tensor._simulator.cost_model import ProcessGroupShape
from mesh_tensor._simulator.op_work import nbytes_of
from mesh_tensor._simulator.rank_groups import HOST, RankGroups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._simulator.cost_model import CostModel
    from mesh_tensor._simulator.event_log import EventLog
    from mesh_tensor._simulator.rank_groups import RankGroup
    from mesh_tensor._simulator.remote_costs import RemoteCosts
    from mesh_tensor._tensor.meta import Kind


__all__ = ["SimulatedValue", "SimulatedWorld", "Storage"]


class Storage:
    """Memory that tensors share, at the same size in each process of a region.

    Attributes:
        nbytes: The size that the device allocates, in bytes.
        device: The type of device.
        ranks: The processes.
        users: The number of tensors that use it.
    """

    __slots__ = ("device", "nbytes", "ranks", "users")

    def __init__(self, nbytes: int, device: str, ranks: bytes) -> None:
        self.nbytes = nbytes
        self.device = device
        self.ranks = ranks
        self.users = 0


class SimulatedValue:
    """The content of a slot.

    Attributes:
        kind: The kind of the tensor; None for other objects.
        storage: The memory.
    """

    __slots__ = ("kind", "storage")

    def __init__(self, kind: Kind | None, storage: Storage) -> None:
        self.kind = kind
        self.storage = storage


class SimulatedWorld:
    """The state of the processes, which instructions modify.

    Args:
        size: The number of processes.
        per_host: The number of processes per host.
        model: The cost model.
        events: Records the events.
        remote: The cost of remote functions.
    """

    def __init__(
        self, size: int, per_host: int, model: CostModel, events: EventLog, remote: RemoteCosts
    ) -> None:
        self.size = size
        self.model = model
        self.rank_groups = RankGroups(size, lambda: events.count)
        self.values: list[SimulatedValue | None] = []
        #: The tensors that streams borrow from others, and whether they may write to them; by
        #: token.
        self.borrows: dict[int, tuple[Kind | None, Storage, bool]] = {}
        #: The values that the current batch carries.
        self.given: list[Any] = []
        #: The time when the current batch has arrived at the processes, in seconds.
        self.arrived_s = 0.0
        #: The index of the current operation within a trace, if it belongs to one.
        self.within: int | None = None
        self._per_host = per_host
        self._events = events
        self.remote = remote

    def storage_at(self, slot: int) -> Storage:
        """Return the memory of the value in a slot."""
        value = self.values[slot]
        assert value is not None
        return value.storage

    def kind_at(self, slot: int) -> Kind:
        """Return the kind of the tensor in a slot."""
        value = self.values[slot]
        assert value is not None
        assert value.kind is not None
        return value.kind

    def shape_of(self, ranks: Sequence[int]) -> ProcessGroupShape:
        """Return the distribution of processes over hosts."""
        hosts = {rank // self._per_host for rank in ranks}
        return ProcessGroupShape(len(ranks), len(hosts))

    def store(
        self, slot: int, kind: Kind | None, base: Storage | None, nbytes: int, ranks: bytes
    ) -> None:
        """Store a value in a slot.

        Args:
            slot: The slot.
            kind: The kind of the value.
            base: The existing memory of the value, if any.
            nbytes: The size of the memory to allocate otherwise, in bytes.
            ranks: The processes that have the value.
        """
        if base is None:
            device = HOST if kind is None else kind.device.type
            base = Storage(self.model.allocated_bytes(device, nbytes), device, ranks)
            self._take(base, base.nbytes)
        base.users += 1
        self.values[slot] = SimulatedValue(kind, base)

    def free(self, slot: int) -> None:
        """Free the value in a slot."""
        value, self.values[slot] = self.values[slot], None
        if value is not None:
            self.release(value.storage)

    def reshape(self, slot: int, kind: Kind, base: Storage | None) -> None:
        """Change the shape of a tensor, or its memory."""
        value = self.values[slot]
        assert value is not None
        value.kind = kind
        storage = value.storage
        if base is not None:
            base.users += 1
            value.storage = base
            self.release(storage)
            return
        needed = self.model.allocated_bytes(storage.device, nbytes_of(kind))
        if needed > storage.nbytes:
            self._take(storage, needed - storage.nbytes)
            storage.nbytes = needed

    def compute(self, compiled_op: CompiledOp, device: str, cost_s: float | None) -> None:
        """Spend the time of an operation; None if it does not occupy a device."""
        arrived_s, dispatch_s = self.arrived_s, self.model.dispatch_s
        key = device, compiled_op.stream_number
        for rank_group in self.rank_groups.of_region(compiled_op.ranks):
            if cost_s is None:
                rank_group.dispatch(compiled_op.stream_number, arrived_s, dispatch_s)
                continue
            device_stream = rank_group.device_stream(key)
            start_s = rank_group.ready_s(device_stream, arrived_s, dispatch_s)
            device_stream.compute_s += cost_s
            rank_group.done(device_stream, start_s + cost_s)
            self._events.record(rank_group, key, start_s, cost_s, compiled_op, False)

    def synchronize(
        self, compiled_op: CompiledOp, device: str, rank_groups: Sequence[RankGroup], cost_s: float
    ) -> None:
        """Let processes wait for each other, and spend the time of a collective."""
        key = device, compiled_op.stream_number
        pairs = [(rank_group, rank_group.device_stream(key)) for rank_group in rank_groups]
        ready = [
            one.ready_s(device_stream, self.arrived_s, self.model.dispatch_s)
            for one, device_stream in pairs
        ]
        start_s = max(ready)
        for (rank_group, device_stream), ready_s in zip(pairs, ready, strict=True):
            device_stream.waiting_s += start_s - ready_s
            device_stream.communication_s += cost_s
            rank_group.done(device_stream, start_s + cost_s)
            self._events.record(rank_group, key, start_s, cost_s, compiled_op, True)

    def record_sync(self, compiled_op: CompiledOp, token: int, device: str) -> None:
        """Record the time when a stream shares a tensor with another stream, or releases it."""
        for rank_group in self.rank_groups.of_region(compiled_op.ranks):
            host_s = rank_group.dispatch(compiled_op.stream_number, self.arrived_s, 0.0)
            rank_group.syncs[token] = (
                host_s,
                max(host_s, rank_group.device_stream((device, compiled_op.stream_number)).clock_s),
            )

    def wait_for_sync(
        self, compiled_op: CompiledOp, token: int, device: str, is_last: bool
    ) -> None:
        """Let a stream wait until a tensor is shared with it, or released to it."""
        for rank_group in self.rank_groups.of_region(compiled_op.ranks):
            rank_group.dispatch(compiled_op.stream_number, self.arrived_s, 0.0)
            found = rank_group.syncs.pop(token, None) if is_last else rank_group.syncs.get(token)
            if found is None:
                continue
            host_s, device_s = found
            rank_group.wait_until(compiled_op.stream_number, host_s)
            device_stream = rank_group.device_stream((device, compiled_op.stream_number))
            if device_s > device_stream.clock_s:
                device_stream.waiting_s += device_s - device_stream.clock_s
                rank_group.done(device_stream, device_s)

    def wait_s(self, ranks: bytes) -> float:
        """Return the time when some processes have executed everything that was issued."""
        return max(rank_group.end_s() for rank_group in self.rank_groups.of_region(ranks))

    def receive(self, compiled_op: CompiledOp, nbytes: int) -> None:
        """Let processes receive a value from the program."""
        link = self.model.between
        arrived_s = self.arrived_s + nbytes / link.bytes_per_s
        for rank_group in self.rank_groups.of_region(compiled_op.ranks):
            rank_group.wait_until(compiled_op.stream_number, arrived_s)

    def _take(self, storage: Storage, nbytes: int) -> None:
        for rank_group in self.rank_groups.of_region(storage.ranks):
            rank_group.allocate(storage.device, nbytes)

    def release(self, storage: Storage) -> None:
        """Decrease the number of users of a storage; free it when there are none."""
        storage.users -= 1
        if not storage.users:
            self._take(storage, -storage.nbytes)
