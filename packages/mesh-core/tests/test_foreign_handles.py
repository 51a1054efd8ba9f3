"""Handles that are unpickled in a program that did not create them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import handle_maker
import pytest

from mesh_core import ForeignHandle, this_host, this_proc

if TYPE_CHECKING:
    from mesh_core import ProcMesh

KINDS = [
    "host mesh",
    "proc mesh",
    "slice of a proc mesh",
    "actor mesh",
    "slice of an actor mesh",
    "endpoint",
    "port",
    "answer port",
    "service",
    "service handle",
]

# Loads all handles of a file in a program without a job, and prints the outcome.
LOAD_ALL = """
import pickle, sys
import handle_maker, mesh_core
for name, pickled in pickle.loads(open(sys.argv[1], "rb").read()).items():
    try:
        pickle.loads(pickled)
    except mesh_core.ForeignHandle as error:
        print(name, "no job" in str(error))
print("running", mesh_core._runtime.runtime.is_running())
"""


def run_python(*arguments: str) -> str:
    """Run a Python program that may import the modules of this folder; return its output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
        env=environment,
    )
    return done.stdout


@pytest.fixture(scope="module")
def pickled_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which another program has stored its pickled handles."""
    path = tmp_path_factory.mktemp("handles") / "pickled"
    run_python(handle_maker.__file__, str(path))
    return path


@pytest.fixture(scope="module")
def pickled(pickled_file: Path) -> dict[str, bytes]:
    """The pickled handles of another program, by kind."""
    made: dict[str, bytes] = pickle.loads(pickled_file.read_bytes())
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_handle_of_another_program_is_refused_when_it_is_unpickled(
    kind: str, pickled: dict[str, bytes], procs: ProcMesh
) -> None:
    with pytest.raises(ForeignHandle) as raised:
        pickle.loads(pickled[kind])
    error = raised.value
    assert len(error.job) == len(error.own_job) == 32
    assert error.job != error.own_job
    assert f"belongs to job {error.job}" in str(error)
    assert f"belongs to job {error.own_job}" in str(error)


def test_refusal_names_the_mesh(pickled: dict[str, bytes], procs: ProcMesh) -> None:
    with pytest.raises(ForeignHandle, match=r"^actor mesh 'ledgers' belongs to job"):
        pickle.loads(pickled["actor mesh"])


def test_refusal_can_be_pickled(pickled: dict[str, bytes], procs: ProcMesh) -> None:
    with pytest.raises(ForeignHandle) as raised:
        pickle.loads(pickled["port"])
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (str(copy), copy.job) == (str(raised.value), raised.value.job)


def test_every_kind_of_handle_is_refused_in_a_program_without_a_job(pickled_file: Path) -> None:
    printed = run_python("-c", LOAD_ALL, str(pickled_file)).splitlines()
    assert sorted(printed) == sorted([*(f"{kind} True" for kind in KINDS), "running False"])


def test_pickled_handle_works_in_its_own_job(procs: ProcMesh) -> None:
    ledgers = procs.spawn("ledgers", handle_maker.Ledger)
    for handle in (ledgers, procs, procs.slice(gpus=1), this_host(), this_proc()):
        assert pickle.loads(pickle.dumps(handle)) == handle
    copy = pickle.loads(pickle.dumps(ledgers.withdraw))
    assert copy.call(30).get().values() == [70] * 4
