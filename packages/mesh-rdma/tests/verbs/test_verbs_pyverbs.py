"""The transport works with the binding of a distribution, in the Python for which it is built."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import cloudpickle
import pytest

import mesh_core
import mesh_rdma

pytestmark = pytest.mark.rdma

#: The Python of a virtual environment cannot be used, because `pyverbs` is built for this one only.
SYSTEM_PYTHON = "/usr/bin/python3"

EXERCISE = Path(__file__).with_name("verbs_exercise.py")


def test_the_system_python_transfers_memory_with_pyverbs() -> None:
    ours = (mesh_core, mesh_rdma, cloudpickle)
    packages = {str(Path(one.__file__ or "").parents[1]) for one in ours}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sorted(packages))}
    ended = subprocess.run(
        [SYSTEM_PYTHON, EXERCISE], env=environment, stdout=subprocess.PIPE, text=True, timeout=100
    )
    assert (ended.returncode, ended.stdout) == (0, "well\n")
