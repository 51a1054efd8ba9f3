"""The samples of torch's OpInfo database give the same results on a mesh as locally.

The guide on operations lists the exceptions in a table, which is compared with the actual results.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from opinfo_names import NAMES
from opinfo_samples import UNPROMISED, Report, case_of, compare, dtypes_of, forms_of, samples_of

import mesh_tensor as mt
from mesh_core import this_host

pytest.importorskip("expecttest", reason="torch's database of operations needs it")
from torch.testing._internal.common_methods_invocations import op_db

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.testing._internal.opinfo.core import OpInfo

_SAMPLES = 2
_SAMPLES_OF_EXCEPTIONS = 6
_SAMPLES_LONG = 64

#: The same number as in the two processes, because it determines the order of additions.
_THREADS = max(1, len(os.sched_getaffinity(0)) // 2)

_GUIDE = Path(__file__).parents[3] / "docs/guides/tensor-operations.md"

#: Operations that do not run on CPUs, or are not part of every torch release.
_ELSEWHERE = ("jiterator_", "torch._scaled")


@cache
def documented() -> dict[str, set[tuple[str, str]]]:
    """Return the rows of the guide: for each operation, its forms and their errors."""
    rows: dict[str, set[tuple[str, str]]] = {}
    for name, form, error in re.findall(
        r"^\| `([\w.]+)`( \(in place\)| \(out=\)|) \| `(\w+)` \|", _GUIDE.read_text(), re.MULTILINE
    ):
        rows.setdefault(name, set()).add((name + form, error))
    return rows


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    """Two ranks."""
    torch.set_num_threads(_THREADS)
    procs = this_host().spawn_procs({"dp": 2})
    with procs.activate() as made:
        pass
    yield made
    procs.stop().get()


def ops_called(name: str) -> list[OpInfo]:
    """Return the entries of the database with this name, which may be several."""
    return [one for one in op_db if one.name == name]


def tried(mesh: Any, op: OpInfo, bound: int) -> Report:
    """Run the samples of an operation."""
    cases = []
    for dtype in dtypes_of(op):
        samples = samples_of(op, dtype, bound)
        with mesh.activate():
            for name, call in forms_of(op):
                made = (case_of(mesh, name, call, sample) for sample in samples)
                cases += [one for one in made if one is not None]
    return compare(mesh, cases, op.name not in UNPROMISED)


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_returns_the_same_on_a_mesh_as_locally(mesh: Any, name: str) -> None:
    raised: dict[tuple[str, str], str] = {}
    for op in ops_called(name):
        # The exceptions fail for some samples only.
        report = tried(mesh, op, _SAMPLES_OF_EXCEPTIONS if name in documented() else _SAMPLES)
        assert not report.wrong
        raised |= report.raised
    assert set(raised) == documented().get(name, set()), raised


def test_listed_operations_and_exceptions_exist_in_the_database() -> None:
    known = {one.name for one in op_db}
    assert set(NAMES) <= known
    assert set(documented()) <= known
    assert len(NAMES) == len(set(NAMES)) >= 300


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_all_operations_of_the_database(mesh: Any) -> None:
    wrong: list[str] = []
    for op in op_db:
        if op.name.startswith(_ELSEWHERE):
            continue
        report = tried(mesh, op, _SAMPLES_LONG)
        wrong += report.wrong
        beyond = set(report.raised) - documented().get(op.name, set())
        wrong += [f"{one}: {report.raised[one]}" for one in sorted(beyond)]
    assert not wrong


def test_a_generator_of_this_process_is_refused(mesh: Any) -> None:
    with mesh.activate(), pytest.raises(mt.UnsupportedOp, match="generator"):
        torch.rand(3, generator=torch.Generator())
