"""Exceptions of simulations."""

from __future__ import annotations

from mesh_core._errors import MeshError

__all__ = ["Abandoned", "SimulatedProgramFailed", "SimulationStuck"]


class Abandoned(BaseException):
    """Ends code of a simulated process that is dead, or whose simulation is over."""


class SimulationStuck(MeshError):
    """A simulated program waits for something that will never happen."""

    def __init__(self, now_s: float, places: list[str]) -> None:
        lines = "".join(f"\n  {place}" for place in places)
        super().__init__(
            f"the simulation makes no progress after {now_s:.3f} s of virtual time; waiting:{lines}"
        )


class SimulatedProgramFailed(MeshError):
    """A failure that no caller received and no `__supervise__` handled ends the program."""


# Tracebacks show the public name, such as mesh_core.testing.SimulationStuck.
for _error in (SimulatedProgramFailed, SimulationStuck):
    _error.__module__ = "mesh_core.testing"
