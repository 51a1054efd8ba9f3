"""The public interface: five modules, each name in exactly one, and a fast import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mesh_core
import mesh_core.compat
import mesh_core.services
import mesh_core.spi
import mesh_core.testing
from mesh_core.testing import PublicSurfaceChecks

# Modules that are slower to import than Mesh itself, or that start something.
HEAVY = {
    "asyncio",
    "cloudpickle",
    "concurrent.futures",
    "ctypes",
    "dataclasses",
    "hashlib",
    "inspect",
    "json",
    "logging",
    "multiprocessing",
    "numpy",
    "pytest",
    "random",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "torch",
    "unittest",
}
# The names that a program for the best-known system in the field imports.
FIELD_NAMES = """
    Accumulator Actor ActorError as_endpoint Channel concurrent_endpoint Context context
    current_actor_name current_rank current_size default_bootstrap_cmd Endpoint endpoint Extent
    Future get_meter get_or_spawn_controller HostMesh MeshFailure Point Port PortReceiver ProcId
    ProcMesh returns_future send shutdown_context span this_host this_proc traced Uid
    unhandled_fault_hook ValueMesh SupervisionError BootstrapCommand Shape Slice Region ActorMesh
    Instance RankedPortReceiver ActorAddr clear_runtime_config configure configured
    get_global_config get_runtime_config attach attach_to_workers run_worker_loop_forever
    run_worker_loop_until_shutdown start_worker_loop_forever
"""


class TestPublicModules(PublicSurfaceChecks):
    modules = (
        mesh_core,
        mesh_core.compat,
        mesh_core.services,
        mesh_core.spi,
        mesh_core.testing,
    )


def test_all_names_that_monarch_programs_import_are_exported() -> None:
    modules = (mesh_core, mesh_core.compat)
    missing = [
        name for name in FIELD_NAMES.split() if not any(hasattr(module, name) for module in modules)
    ]
    assert missing == []


def test_importing_the_package_loads_no_services() -> None:
    program = """
import sys
import mesh_core
import mesh_core.compat
import mesh_core.spi
print(*(name for name in sys.modules if name.startswith("mesh_core._services")))
"""
    assert in_new_python(program) == "\n"


def test_importing_the_package_loads_no_cases() -> None:
    program = """
import sys
import mesh_core
import mesh_core.compat
import mesh_core.spi
print(*(name for name in sys.modules if name.startswith("mesh_core._cases")))
"""
    assert in_new_python(program) == "\n"


def in_new_python(program: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize(
    "module", ["mesh_core", "mesh_core.compat", "mesh_core.services", "mesh_core.spi"]
)
def test_importing_loads_no_heavy_modules(module: str) -> None:
    # Modules that Python loads at startup do not count.
    program = (
        f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules)-before)"
    )
    assert HEAVY & set(in_new_python(program).split()) == set()


def test_the_testing_module_can_be_imported_without_pytest() -> None:
    program = """
import sys
sys.modules["pytest"] = None
import mesh_core.testing
try:
    mesh_core.testing.local_procs
except ImportError as error:
    print(error.name)
"""
    assert in_new_python(program) == "pytest\n"


@pytest.mark.parametrize("module", ["mesh_core", "mesh_core.spi", "mesh_core.testing"])
def test_import_starts_no_thread_and_opens_no_file(module: str) -> None:
    # Processes are forked from one that has imported Mesh, and threads do not survive a fork.
    program = f"""
import os
tasks, files = len(os.listdir("/proc/self/task")), set(os.listdir("/proc/self/fd"))
import {module}
print(len(os.listdir("/proc/self/task")) - tasks, set(os.listdir("/proc/self/fd")) - files)
"""
    assert in_new_python(program) == "0 set()\n"
