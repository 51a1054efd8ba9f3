"""Programs on processes that are not there: how long a step takes, and how much memory."""

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
    """A part of a program that was simulated by itself; see `Simulator.step`."""

    def __init__(self) -> None:
        self._report: SimulationReport | None = None

    @property
    def report(self) -> SimulationReport:
        """What it takes.

        Raises:
            TensorError: It has not ended yet.
        """
        if self._report is None:
            raise TensorError("the report is there when the step is over: ask behind the `with`")
        return self._report


class Simulator:
    """Processes that are not there, for programs whose time and memory are to be known.

    Within `activate` plain PyTorch is issued as to real processes: by the same code, with the same
    plans, the same frees. What would be sent goes to a stand-in that keeps shapes, memory and
    clocks, and no values; it takes no devices, and no build of torch for them. Tensors may be on
    any device that the cost model knows, by its name: `torch.ones(3, device="cuda")`.

    Args:
        sizes: The dimensions of the mesh, as for `spawn_procs`.
        model: What things cost; an H100 for each process if nothing is said.
        per_host: How many processes are on one host, in the order of their ranks.
        device: The type of device that each process has.
        costs: How long remote functions take, which do not run: for each a rule that is called as
            the function is, with tensors without values, and gives seconds. Others take as long
            as it takes to read and write what goes in and out.
        fake_values: Whether the program gets zeros where it asks for values, and not `NoValues`.
        events_max: So many events are kept for `trace`.

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
        """All processes."""
        return self._mesh

    @contextmanager
    def activate(self) -> Iterator[DeviceMesh]:
        """Has tensors that are made within `with` made on the simulated processes."""
        with labels(), self._mesh.activate():
            yield self._mesh

    @contextmanager
    def step(self) -> Iterator[SimulatedPart]:
        """Takes the time and memory of what is done within `with`, apart from what was before.

        What is in memory already counts. The part that is given has the report, once it is over.
        """
        self.reset()
        part = SimulatedPart()
        yield part
        part._report = self.report()

    def reset(self) -> None:
        """Has time begin anew, and peaks with what is in memory now."""
        self._engine.stream.flush()
        self._world.rank_groups.reset()
        self._workers.reset()
        self._events.clear()

    def report(self) -> SimulationReport:
        """Says what all that was issued since the last reset takes."""
        self._engine.stream.flush()
        return report_of(self._world, self._workers.program_s, self._events)

    def trace(
        self,
        path: str | PathLike[str],
        ranks: Sequence[int] | None = None,
        ranks_max: int = 16,
    ) -> None:
        """Writes what was done since the last reset, for chrome's trace viewer or Perfetto.

        Args:
            path: Where to.
            ranks: Of which processes; if nothing is said, one of each sort that does the same.
            ranks_max: Of how many sorts at most.

        Raises:
            OSError: It cannot be written.
        """
        self._engine.stream.flush()
        rank_groups = self._world.rank_groups
        if ranks is None:
            firsts = sorted(rank_group.ranks[0] for rank_group in rank_groups.all)
            ranks = list(itertools.islice(firsts, ranks_max))
        write_trace(path, rank_groups, self._events, ranks)
