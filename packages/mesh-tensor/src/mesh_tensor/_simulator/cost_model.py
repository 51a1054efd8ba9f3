"""What things cost on machines that are not there: operations, transfers, and saying so."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from mesh_tensor._simulator.op_times import op_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mesh_tensor._simulator.op_times import OpTimes
    from mesh_tensor._tensor.meta import Kind

__all__ = ["CostModel", "DeviceModel", "Link", "ProcessGroupShape", "Work"]


@dataclass(frozen=True)
class Work:
    """One operation on one device, as a cost model sees it.

    Attributes:
        name: Which one, as `aten.mm.default`.
        device: The type of device, as `cuda`.
        dtype: In which type it computes.
        flops: How many operations on numbers it takes, where there is a formula for it.
        nbytes: How many bytes it reads and writes.
        operands: What it takes.
        results: What it gives, or writes to.
    """

    name: str
    device: str
    dtype: torch.dtype
    flops: int
    nbytes: int
    operands: tuple[Kind, ...] = ()
    results: tuple[Kind, ...] = ()


@dataclass(frozen=True)
class ProcessGroupShape:
    """How processes that exchange something lie on their hosts.

    Attributes:
        size: How many there are.
        hosts: On how many hosts.
    """

    size: int
    hosts: int = 1

    @property
    def per_host(self) -> int:
        """How many there are on one host, at most."""
        return -(-self.size // self.hosts)


@dataclass(frozen=True)
class Link:
    """A way between devices.

    Attributes:
        bytes_per_s: What one device can send, while it receives as much.
        latency_s: How long the first byte takes.
    """

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class DeviceModel:
    """A device as its data sheet has it, and how much of that programs get.

    Attributes:
        flops_per_s: By type of numbers; those that are not said take as long as `float32`.
        bytes_per_s: Of its memory.
        memory_bytes: How much that is.
        launch_s: The shortest time that anything takes.
        compute_share: How much of `flops_per_s` programs get.
        bandwidth_share: How much of `bytes_per_s` they get.
        granule_bytes: Memory is taken in multiples of this.
    """

    flops_per_s: Mapping[torch.dtype, float]
    bytes_per_s: float
    memory_bytes: int
    launch_s: float = 0.0
    compute_share: float = 1.0
    bandwidth_share: float = 1.0
    granule_bytes: int = 1

    def op_s(self, work: Work) -> float:
        """Gives how long an operation takes: as long as its numbers, or as its bytes."""
        rate = self.flops_per_s.get(work.dtype) or self.flops_per_s[torch.float32]
        compute_s = work.flops / (rate * self.compute_share)
        return self.launch_s + max(
            compute_s, work.nbytes / (self.bytes_per_s * self.bandwidth_share)
        )


_GIB = 1 << 30

#: A host's processors; a rough guess, as little is computed there.
_HOST = DeviceModel({torch.float32: 1e12}, 100e9, 512 * _GIB, 1e-6)


@dataclass(frozen=True)
class CostModel:
    """How long things take: subclass it, or change its parts with `dataclasses.replace`.

    Attributes:
        devices: By type, as in `torch.device`; `cpu` is the host's own.
        inside: The way between devices of one host.
        between: The way between hosts, for each device.
        host_link: The way between a host's memory and that of a device.
        issue_s: How long the program is busy with one operation; where it is None, as long as it
            is in the simulation itself, on this machine.
        dispatch_s: How long a process is busy with one operation before its device can begin.
        delivery_s: How long operations are under way from the program to the processes.
        times: How long operations take that were measured; see `measured`.
    """

    devices: Mapping[str, DeviceModel]
    inside: Link
    between: Link
    host_link: Link = Link(50e9, 5e-6)
    issue_s: float | None = 12e-6
    dispatch_s: float = 8e-6
    delivery_s: float = 200e-6
    times: OpTimes | None = None

    @classmethod
    def h100(cls) -> CostModel:
        """H100 SXM, eight to a host by NVLink, one 400 Gb/s port for each to other hosts.

        The figures are those of NVIDIA's data sheet, without sparsity: 989 TFLOPS of bfloat16,
        67 of float32, 3.35 TB/s, 80 GB, NVLink with 450 GB/s each way. How much of them programs
        get (70 % and 80 %), the latencies and the time of a launch are assumptions.
        """
        device = DeviceModel(
            _tensor_cores(bfloat16=989e12, float32=67e12, float64=67e12, float8=1979e12),
            3.35e12,
            80_000_000_000,
            launch_s=3e-6,
            compute_share=0.7,
            bandwidth_share=0.8,
            granule_bytes=512,
        )
        return cls({"cuda": device, "cpu": _HOST}, Link(450e9, 3e-6), Link(50e9, 10e-6))

    @classmethod
    def h200(cls) -> CostModel:
        """As `h100`, with 141 GB at 4.8 TB/s, as NVIDIA's data sheet of the H200 SXM says."""
        model = cls.h100()
        device = replace(model.devices["cuda"], bytes_per_s=4.8e12, memory_bytes=141_000_000_000)
        return replace(model, devices={**model.devices, "cuda": device})

    @classmethod
    def a100(cls) -> CostModel:
        """A100 SXM with 80 GB, eight to a host by NVLink, one 200 Gb/s port for each.

        The figures are those of NVIDIA's data sheet, without sparsity: 312 TFLOPS of bfloat16,
        19.5 of float32, 2.039 TB/s, NVLink with 300 GB/s each way. The rest is as in `h100`.
        """
        device = DeviceModel(
            _tensor_cores(bfloat16=312e12, float32=19.5e12, float64=19.5e12),
            2.039e12,
            80_000_000_000,
            launch_s=3e-6,
            compute_share=0.7,
            bandwidth_share=0.8,
            granule_bytes=512,
        )
        return cls({"cuda": device, "cpu": _HOST}, Link(300e9, 3e-6), Link(25e9, 10e-6))

    def measured(self, times: OpTimes) -> CostModel:
        """Gives the same with times of operations that were taken; it is asked for others only."""
        return replace(self, times=times)

    def op_s(self, work: Work) -> float:
        """Gives how long an operation takes on its device.

        Raises:
            ValueError: The model knows no such device.
        """
        if self.times is not None:
            shapes = ((kind.shape, kind.dtype) for kind in work.operands)
            took_s = self.times.seconds(op_key(work.name, work.device, shapes))
            if took_s is not None:
                return took_s
        device = self.devices.get(work.device)
        if device is None:
            known = ", ".join(self.devices)
            raise ValueError(
                f"the cost model knows no device {work.device!r}, only {known}: add it to "
                "its devices"
            )
        return device.op_s(work)

    def copy_s(self, nbytes: int) -> float:
        """Gives how long it takes between a host's memory and that of a device."""
        return self.host_link.latency_s + nbytes / self.host_link.bytes_per_s

    def collective_s(self, kind: str, nbytes: int, group: ProcessGroupShape) -> float:
        """Gives how long a collective takes once all have come to it.

        Within a host and between hosts each goes by a ring, or (`all_reduce`) by a tree where
        that is faster; both are under way at once, so that the slower one counts, and the
        latencies of both. Between hosts, all devices of a host carry their part.

        Args:
            kind: `all_reduce`, `reduce_scatter`, `all_gather` or `all_to_all`.
            nbytes: What each process has before (or, of `all_gather`, has afterwards).
            group: Who takes part.
        """
        if group.size == 1:
            return 0.0
        ring_s = self._ring_s(kind, nbytes, group)
        if kind != "all_reduce":
            return ring_s
        return min(ring_s, self._tree_s(nbytes, group))

    def send_s(self, nbytes: int, goals: int, group: ProcessGroupShape) -> float:
        """Gives how long it takes to send something from one process to others.

        Args:
            nbytes: What is sent to each.
            goals: To how many.
            group: Who takes part.
        """
        link = self.inside if group.hosts == 1 else self.between
        return link.latency_s + goals * nbytes / link.bytes_per_s

    def _ring_s(self, kind: str, nbytes: int, group: ProcessGroupShape) -> float:
        rounds = 2 if kind == "all_reduce" else 1
        here, hosts = group.per_host, group.hosts
        inside_s = between_s = latency_s = 0.0
        if here > 1:
            share = (here - 1) / here
            inside_s = rounds * share * nbytes / self.inside.bytes_per_s
            latency_s += rounds * (here - 1) * self.inside.latency_s
        if hosts > 1:
            share = (hosts - 1) / hosts
            # What leaves a host of an all-to-all is of all its devices, over all their ports.
            carried = nbytes if kind == "all_to_all" else nbytes / here
            between_s = rounds * share * carried / self.between.bytes_per_s
            latency_s += rounds * (hosts - 1) * self.between.latency_s
        return latency_s + max(inside_s, between_s)

    def _tree_s(self, nbytes: int, group: ProcessGroupShape) -> float:
        here, hosts = group.per_host, group.hosts
        inside_s = between_s = latency_s = 0.0
        if here > 1:
            inside_s = 2 * nbytes / self.inside.bytes_per_s
            latency_s += 2 * math.ceil(math.log2(here)) * self.inside.latency_s
        if hosts > 1:
            between_s = 2 * nbytes / here / self.between.bytes_per_s
            latency_s += 2 * math.ceil(math.log2(hosts)) * self.between.latency_s
        return latency_s + max(inside_s, between_s)

    def allocated_bytes(self, device: str, nbytes: int) -> int:
        """Gives how much memory a tensor of so many bytes takes."""
        model = self.devices.get(device)
        granule = 1 if model is None else model.granule_bytes
        return -(-nbytes // granule) * granule


def _tensor_cores(
    bfloat16: float, float32: float, float64: float, float8: float = 0.0
) -> dict[torch.dtype, float]:
    rates = {torch.bfloat16: bfloat16, torch.float16: bfloat16}
    rates |= {torch.float32: float32, torch.float64: float64}
    if float8:
        rates |= {torch.float8_e4m3fn: float8, torch.float8_e5m2: float8}
    return rates
