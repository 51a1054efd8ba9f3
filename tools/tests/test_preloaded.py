"""Modules that define actors are preloaded for the test files that use them."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tools.preloaded import actor_modules


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for mesh_core, which the environment of these tests lacks."""
    made = ModuleType("mesh_core")
    exec("class Actor: pass", vars(made))
    monkeypatch.setitem(sys.modules, "mesh_core", made)
    return made


def module(monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> ModuleType:
    """Return a module with this code."""
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(code, vars(made))
    return made


@pytest.mark.usefixtures("core")
def test_the_modules_of_imported_actors_and_of_their_programs_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actor = "from mesh_core import Actor\nclass Worker(Actor): pass\n"
    module(monkeypatch, "workers", actor)
    module(monkeypatch, "programs", actor + "class Program: pass\n")
    module(monkeypatch, "paths", "class Path: pass\n")
    names = "from workers import Worker\nfrom programs import Program\nfrom paths import Path\n"
    assert actor_modules(module(monkeypatch, "test_it", names)) == ("workers", "programs")
    assert actor_modules(module(monkeypatch, "test_own", actor)) == ("test_own",)
    assert actor_modules(module(monkeypatch, "test_none", "from paths import Path\n")) == ()


@pytest.mark.usefixtures("core")
def test_packages_of_mesh_are_not_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = "from mesh_core import Actor\nclass Rows(Actor): pass\n"
    module(monkeypatch, "mesh_telemetry._rows", actor)
    rows = sys.modules["mesh_telemetry._rows"].Rows
    test = module(monkeypatch, "test_it", "")
    test.__dict__["Rows"] = rows
    assert actor_modules(test) == ()


def test_tests_without_mesh_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_well(): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    root = Path(__file__).parents[2]
    code = f"import sys; sys.path.append({str(root)!r}); import pytest; sys.exit(pytest.main())"
    options = ["-c", code, "-p", "tools.preloaded", "-p", "no:cacheprovider"]
    ended = subprocess.run([sys.executable, *options], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
