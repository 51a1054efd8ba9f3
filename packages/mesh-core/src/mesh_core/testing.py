"""Test support for programs that use Mesh, for use with pytest.

Import the fixture `local_procs` into a `conftest.py` or a test module and request it by name:

    from mesh_core.testing import local_procs

    def test_counting(local_procs):
        counters = local_procs({"gpus": 2}).spawn("counters", Counter)
        assert counters.add.call(1).get().values() == [1, 1]

Only `local_procs`, `parametrize_config` and `parametrize_config_pointwise` need pytest, and they
import it when they are first used.
"""

import typing as _typing

from mesh_core._simulation.cluster import SimulatedCluster as SimulatedCluster
from mesh_core._simulation.cluster import simulated as simulated
from mesh_core._simulation.errors import SimulatedProgramFailed as SimulatedProgramFailed
from mesh_core._simulation.errors import SimulationStuck as SimulationStuck
from mesh_core._simulation.faults import SimulatedFaults as SimulatedFaults
from mesh_core._simulation.seeds import SimulationNotRepeatable as SimulationNotRepeatable
from mesh_core._simulation.seeds import mesh_simulation as mesh_simulation
from mesh_core._testing.faults import kill_proc as kill_proc
from mesh_core._testing.faults import proc_pid as proc_pid
from mesh_core._testing.faults import wait_until as wait_until
from mesh_core._testing.local_procs import LocalProcs as LocalProcs
from mesh_core._testing.public_surface import PublicSurfaceChecks as PublicSurfaceChecks
from mesh_core._testing.shared_bytes import shared_bytes_in_use as shared_bytes_in_use

if _typing.TYPE_CHECKING:
    from mesh_core._testing.config import parametrize_config as parametrize_config
    from mesh_core._testing.config import (
        parametrize_config_pointwise as parametrize_config_pointwise,
    )
    from mesh_core._testing.fixtures import local_procs as local_procs

_OF_PYTEST = ("local_procs", "parametrize_config", "parametrize_config_pointwise")


def __getattr__(name: str) -> object:
    if name in _OF_PYTEST:
        # Programs without pytest use the rest of this module.
        from mesh_core._testing import with_pytest  # noqa: PLC0415

        return getattr(with_pytest, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_PYTEST})
