"""Bytecode that environments share."""

import os
import py_compile
from pathlib import Path

import pytest

from tools import bytecode

COMPILED = "package/__pycache__/module.cpython-311.pyc"
PYTHON = Path("python")


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two environments with the same package; the bytecode of the first one is stored."""
    made = [tmp_path / "one", tmp_path / "other"]
    for site in made:
        (site / "package").mkdir(parents=True)
    (made[0] / "package/module.py").write_text("answer = 42\n")
    os.link(made[0] / "package/module.py", made[1] / "package/module.py")
    py_compile.compile(str(made[0] / "package/module.py"), str(made[0] / COMPILED))
    monkeypatch.setattr(bytecode, "_folders", lambda _: (made[0], tmp_path / "store"))
    bytecode.store(PYTHON)
    monkeypatch.setattr(bytecode, "_folders", lambda _: (made[1], tmp_path / "store"))
    return made


def test_an_environment_reuses_the_bytecode_of_another(sites: list[Path]) -> None:
    bytecode.restore(PYTHON)
    assert (sites[1] / COMPILED).samefile(sites[0] / COMPILED)


def test_bytecode_of_a_different_source_is_skipped(sites: list[Path]) -> None:
    source = sites[1] / "package/module.py"
    source.unlink()
    source.write_text("answer = 43\n")
    os.utime(source, (1, 1))
    bytecode.restore(PYTHON)
    assert not (sites[1] / COMPILED).exists()


def test_packages_that_are_not_installed_are_skipped(sites: list[Path]) -> None:
    (sites[1] / "package/module.py").unlink()
    (sites[1] / "package").rmdir()
    bytecode.restore(PYTHON)
    assert not (sites[1] / "package").exists()
