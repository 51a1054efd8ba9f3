"""`tools run` installs the packages that a script imports, and their dependencies."""

from pathlib import Path

from tools.imported import packages_of
from tools.workspace import PACKAGES


def test_imports_of_a_script_are_found_with_their_dependencies(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\n\ndef main():\n    from mesh_jobs.spi import Backend\n")
    assert packages_of([str(script), "--fast"]) == ["mesh-core", "mesh-jobs"]


def test_imports_of_modules_next_to_the_script_are_found(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import model\n")
    (tmp_path / "model.py").write_text("import script, mesh_rdma\n")
    assert packages_of([str(tmp_path / "script.py")]) == ["mesh-core", "mesh-rdma"]


def test_all_packages_are_installed_if_the_imports_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import (\n")
    for arguments in (["-m", "mesh_core.worker"], ["missing.py"], [str(tmp_path / "broken.py")]):
        assert packages_of(arguments) == list(PACKAGES)
