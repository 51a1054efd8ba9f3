"""Programs on simulated processes: the time and memory that a step needs."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from mesh_core import Region
from mesh_tensor._engine.engine import Engine
from mesh_tensor._errors import TensorError
from mesh_tensor._simulator.chrome_trace import write_trace
from mesh_tensor._simulator.cost_model import CostModel
from mesh_tensor._simulator.event_log import EventLog
from mesh_tensor._simulator.fake_device import labels
from mesh_tensor._simulator.remote_costs import RemoteCosts
from mesh_tensor._simulator.report import SimulationReport, report_of
from mesh_tensor._simulator.simulated_engine import Simulated
from mesh_tensor._simulator.workers import SimulatedWorkers
from mesh_tensor._simulator.world import SimulatedWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._remote.function import RemoteFunction

__all__ = ["SimulatedPart", "Simulator"]


class SimulatedPart:
    """A part of a program that is measured separately; see `Simulator.step`."""

    def __init__(self) -> None:
        self._report: SimulationReport | None = None

    @property
    def report(self) -> SimulationReport:
        """The report of this part.

        Raises:
            TensorError: The part has not ended yet.
        """
        if self._report is None:
            raise TensorError(
                "the report is not available until the step is over: read it after the `with` block"
            )
        return self._report


class Simulator:
    """A mesh of simulated processes, for predicting the time and memory of a program.

    Within `activate`, plain PyTorch operations are issued by the same code as to real processes,
    with the same compiled ops and frees. Instead of processes, a simulated backend receives them;
    it tracks shapes, memory and clocks, but no values. It needs neither devices nor a PyTorch build
    for them. Tensors may be on any device that the cost model contains, by its name: `torch.ones(3,
    device="cuda")`.

    Args:
        sizes: The dimensions of the mesh, as for `spawn_procs`.
        model: The cost model. Default: `CostModel.h100()`.
        per_host: The number of processes per host, in the order of their ranks.
        device: The type of device of each process.
        costs: The durations of remote functions, which do not run. Each rule is called like its
            function, with tensors without values, and returns seconds. Functions without a rule
            take the time to read and write their operands and results.
        fake_values: Whether the program gets zeros when it reads values, instead of `NoValues`.
        events_max: The maximum number of events that are kept for `trace`.

    Example:
        >>> simulator = Simulator({"dp": 125, "gpu": 8})
        >>> with simulator.activate() as mesh:
        ...     x = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
        ...     y = (x @ x).reduce("gpu")
        >>> print(simulator.report().total_s)
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        model: CostModel | None = None,
        *,
        per_host: int = 8,
        device: str = "cuda",
        costs: Mapping[RemoteFunction[..., Any], Callable[..., float]] | None = None,
        fake_values: bool = False,
        events_max: int = 1_000_000,
    ) -> None:
        region = Region.row_major(list(sizes), list(sizes.values()))
        self._model = model or CostModel.h100()
        self._events = EventLog(events_max)
        remote = RemoteCosts(costs or {}, self._model)
        self._world = SimulatedWorld(len(region), per_host, self._model, self._events, remote)
        simulated = Simulated(torch.device(device, 0), self._model.devices)
        self._workers = SimulatedWorkers(self._world, simulated, self._events, fake_values)
        self._engine = Engine(self._workers, len(region), lambda: None, simulated)
        self._workers.begin(self._engine)
        remote.engine = self._engine
        self._mesh = self._engine.mesh(region)

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of all processes."""
        return self._mesh

    @contextmanager
    def activate(self) -> Iterator[DeviceMesh]:
        """Create new tensors on the simulated processes until the `with` block ends."""
        with labels(), self._mesh.activate():
            yield self._mesh

    @contextmanager
    def step(self) -> Iterator[SimulatedPart]:
        """Measure the time and memory of a `with` block separately.

        Memory that is already in use counts. The report of the yielded part is available after the
        block.
        """
        self.reset()
        part = SimulatedPart()
        yield part
        part._report = self.report()

    def reset(self) -> None:
        """Reset the time to zero, and the peaks to the memory in use now."""
        self._engine.stream.flush()
        self._world.rank_groups.reset()
        self._workers.reset()
        self._events.clear()

    def report(self) -> SimulationReport:
        """Return the report of everything issued since the last reset."""
        self._engine.stream.flush()
        return report_of(self._world, self._workers.program_s, self._events)

    def trace(
        self,
        path: str | PathLike[str],
        ranks: Sequence[int] | None = None,
        ranks_max: int = 16,
    ) -> None:
        """Write the events since the last reset for Chrome's trace viewer or Perfetto.

        Args:
            path: The output file.
            ranks: The processes to include. Default: one process of each group that does the same.
            ranks_max: The maximum number of such groups.

        Raises:
            OSError: The file cannot be written.
        """
        self._engine.stream.flush()
        rank_groups = self._world.rank_groups
        if ranks is None:
            firsts = sorted(rank_group.ranks[0] for rank_group in rank_groups.all)
            ranks = list(itertools.islice(firsts, ranks_max))
        write_trace(path, rank_groups, self._events, ranks)
