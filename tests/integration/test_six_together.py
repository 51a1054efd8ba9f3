"""The six packages work in one process."""

import subprocess
import sys
from itertools import permutations

import pytest

from tools.workspace import packages

PACKAGES = ("mesh_core", "mesh_rdma", "mesh_telemetry", "mesh_jobs", "mesh_fs", "mesh_tensor")
UPPER = PACKAGES[1:]


def test_all_public_modules_are_imported_in_one_process() -> None:
    modules = [module for one in packages() for module in one.public_modules]
    run_python(f"import {', '.join(modules)}")


@pytest.mark.parametrize(("first", "second"), list(permutations(UPPER, 2)))
def test_order_of_imports_does_not_matter(first: str, second: str) -> None:
    run_python(f"import {first}, {second}")


def run_python(code: str) -> None:
    """Run Python code in a fresh interpreter in which every warning is an error."""
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
