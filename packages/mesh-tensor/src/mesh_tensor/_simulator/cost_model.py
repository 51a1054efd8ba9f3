"""Cost models: the durations of operations, transfers and issuing on simulated machines."""

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
    """One operation on one device, as the input of a cost model.

    Attributes:
        name: The name of the operation, such as `aten.mm.default`.
        device: The type of device, such as `cuda`.
        dtype: The dtype of the computation.
        flops: The number of floating-point operations; 0 if there is no formula for the operation.
        nbytes: The number of bytes read and written.
        operands: The operands.
        results: The results, including operands that are written to.
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
    """The distribution of communicating processes over hosts.

    Attributes:
        size: The number of processes.
        hosts: The number of hosts.
    """

    size: int
    hosts: int = 1

    @property
    def per_host(self) -> int:
        """The maximum number of processes on one host."""
        return -(-self.size // self.hosts)


@dataclass(frozen=True)
class Link:
    """A connection between devices.

    Attributes:
        bytes_per_s: The bandwidth of one device in each direction, in bytes per second.
        latency_s: The latency of the first byte, in seconds.
    """

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class DeviceModel:
    """A device with the figures of its data sheet, and the share of them that programs achieve.

    Attributes:
        flops_per_s: Floating-point operations per second, by dtype. Dtypes that are not listed are
            as fast as `float32`.
        bytes_per_s: The bandwidth of the memory, in bytes per second.
        memory_bytes: The size of the memory.
        launch_s: The time that is added to each operation, in seconds.
        compute_share: The share of `flops_per_s` that programs achieve.
        bandwidth_share: The share of `bytes_per_s` that programs achieve.
        granule_bytes: Memory is allocated in multiples of this size.
    """

    flops_per_s: Mapping[torch.dtype, float]
    bytes_per_s: float
    memory_bytes: int
    launch_s: float = 0.0
    compute_share: float = 1.0
    bandwidth_share: float = 1.0
    granule_bytes: int = 1

    def op_s(self, work: Work) -> float:
        """Return the duration of an operation: the larger of its compute and memory times.

        The time of a launch is added.
        """
        rate = self.flops_per_s.get(work.dtype) or self.flops_per_s[torch.float32]
        compute_s = work.flops / (rate * self.compute_share)
        return self.launch_s + max(
            compute_s, work.nbytes / (self.bytes_per_s * self.bandwidth_share)
        )


_GIB = 1 << 30

#: The CPUs of a host; a rough estimate, because little is computed there.
_HOST = DeviceModel({torch.float32: 1e12}, 100e9, 512 * _GIB, 1e-6)


@dataclass(frozen=True)
class CostModel:
    """The duration of everything: subclass it, or change fields with `dataclasses.replace`.

    Attributes:
        devices: The device models by type, as in `torch.device`; `cpu` is the CPU of the host.
        inside: The link between devices of one host.
        between: The link between hosts, for each device.
        host_link: The link between the memory of a host and the memory of a device.
        issue_s: The time that the program needs to issue one operation, in seconds. If None, the
            time that issuing really takes in the simulation, on this machine.
        dispatch_s: The time that a process needs for one operation before its device can begin.
        delivery_s: The latency of operations from the program to the processes.
        times: Measured durations of operations; see `measured`.
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
        """H100 SXM: eight per host with NVLink, and a 400 Gb/s port to other hosts for each.

        The figures are those of NVIDIA's data sheet, without sparsity: 989 TFLOPS of bfloat16, 67
        of float32, 3.35 TB/s, 80 GB, NVLink with 450 GB/s in each direction. The shares of them
        that programs achieve (70 % and 80 %), the latencies and the launch time are assumptions.
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
        """Like `h100`, with 141 GB at 4.8 TB/s, from NVIDIA's data sheet of the H200 SXM."""
        model = cls.h100()
        device = replace(model.devices["cuda"], bytes_per_s=4.8e12, memory_bytes=141_000_000_000)
        return replace(model, devices={**model.devices, "cuda": device})

    @classmethod
    def a100(cls) -> CostModel:
        """A100 SXM with 80 GB: eight per host with NVLink, and a 200 Gb/s port for each.

        The figures are those of NVIDIA's data sheet, without sparsity: 312 TFLOPS of bfloat16, 19.5
        of float32, 2.039 TB/s, NVLink with 300 GB/s in each direction. The other figures are those
        of `h100`.
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
        """Return the same model with measured times, which take precedence over the formulas."""
        return replace(self, times=times)

    def op_s(self, work: Work) -> float:
        """Return the duration of an operation on its device, in seconds.

        Raises:
            ValueError: The model has no such device.
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
                f"the cost model has no device {work.device!r}, only {known}: add it to its devices"
            )
        return device.op_s(work)

    def copy_s(self, nbytes: int) -> float:
        """Return the duration of a copy between host and device memory, in seconds."""
        return self.host_link.latency_s + nbytes / self.host_link.bytes_per_s

    def collective_s(self, kind: str, nbytes: int, group: ProcessGroupShape) -> float:
        """Return the duration of a collective after all processes have reached it, in seconds.

        The collective uses a ring within a host and between hosts, or, for `all_reduce`, trees if
        they are faster. Both levels run concurrently, so the slower one counts, plus the latencies
        of both. Between hosts, each device of a host transfers its part.

        Args:
            kind: `all_reduce`, `reduce_scatter`, `all_gather` or `all_to_all`.
            nbytes: The number of bytes that each process has before the collective, or after it for
                `all_gather`.
            group: The processes that take part.
        """
        if group.size == 1:
            return 0.0
        ring_s = self._ring_s(kind, nbytes, group)
        if kind != "all_reduce":
            return ring_s
        return min(ring_s, self._tree_s(nbytes, group))

    def send_s(self, nbytes: int, goals: int, group: ProcessGroupShape) -> float:
        """Return the duration of sending from one process to others, in seconds.

        Args:
            nbytes: The number of bytes sent to each destination.
            goals: The number of destinations.
            group: The processes that take part.
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
            # In an all-to-all, each device of a host sends its own data over its own port.
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
        """Return the number of bytes that the allocator reserves for a tensor of `nbytes` bytes."""
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
