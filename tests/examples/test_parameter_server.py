"""The parameter server of examples/ applies each update once under the faults of many seeds."""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from mesh_core.testing import SimulatedCluster, SimulatedFaults, mesh_simulation
from tools.workspace import ROOT

SEEDS, MANY_SEEDS = 100, 500
BATCHES = 12


def _example() -> ModuleType:
    path = ROOT / "examples" / "parameter_server.py"
    spec = importlib.util.spec_from_file_location("parameter_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


example: Any = _example()


FAULTS = SimulatedFaults(kills=3, within_s=2.0)


@pytest.mark.timeout(600)
@mesh_simulation(seeds=SEEDS, hosts=2, faults=FAULTS)
def test_each_batch_is_applied_once(cluster: SimulatedCluster) -> None:
    assert example.train(cluster.hosts, BATCHES) == example.expected(BATCHES)


@pytest.mark.slow
@pytest.mark.timeout(600)
@mesh_simulation(seeds=MANY_SEEDS, hosts=2, faults=FAULTS)
def test_each_batch_is_applied_once_under_many_faults(cluster: SimulatedCluster) -> None:
    assert example.train(cluster.hosts, BATCHES) == example.expected(BATCHES)
