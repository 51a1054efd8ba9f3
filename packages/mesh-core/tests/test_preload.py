"""Modules that hosts import before processes are started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workers import WorkerProcess

from mesh_core import Actor, attach_to_workers, endpoint, shutdown_context, this_host

LIMIT_S = 30.0
#: A module that neither Mesh nor the tests import.
MODULE = "colorsys"


class Importer(Actor):
    """Reports the modules that its process has imported."""

    @endpoint
    def has(self, name: str) -> bool:
        return name in sys.modules


@pytest.fixture
def fresh_job() -> Iterator[None]:
    """Use a separate job, because hosts remember the modules that they have imported."""
    shutdown_context().get()
    yield
    shutdown_context().get()


def importers(hosts: Any) -> Any:
    """Start two actors."""
    return hosts.spawn_procs({"n": 2}).spawn("importers", Importer)


@pytest.mark.usefixtures("fresh_job")
def test_new_processes_have_the_preloaded_modules() -> None:
    assert not any(importers(this_host()).has.call(MODULE).get(timeout=LIMIT_S).values())
    this_host().preload(MODULE, "nothing.of.this_name")
    assert MODULE not in sys.modules
    assert all(importers(this_host()).has.call(MODULE).get(timeout=LIMIT_S).values())


@pytest.mark.usefixtures("fresh_job")
def test_modules_are_preloaded_on_other_hosts() -> None:
    with WorkerProcess() as worker:
        hosts = attach_to_workers([worker.address])
        hosts.preload(MODULE)
        assert all(importers(hosts).has.call(MODULE).get(timeout=LIMIT_S).values())
        assert not any(importers(this_host()).has.call(MODULE).get(timeout=LIMIT_S).values())


@pytest.mark.usefixtures("fresh_job")
def test_the_next_test_of_a_suite_reuses_the_preloaded_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    (tmp_path / "counted_import.py").write_text(f"open({str(count)!r}, 'a').write('x')\n")
    monkeypatch.syspath_prepend(tmp_path)
    this_host().preload("counted_import")
    for test in ("test_a.py::test_1 (call)", "test_a.py::test_2 (setup)"):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", test)
        assert all(importers(this_host()).has.call("counted_import").get(LIMIT_S).values())
    assert count.read_text() == "x"


@pytest.mark.parametrize("name", ["", "a b", "torch-cpu", "a..b"])
def test_an_invalid_module_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a module"):
        this_host().preload("math", name)
