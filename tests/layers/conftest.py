"""Clean environments, each with one wheel and its dependencies."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class CleanEnvironment:
    """An environment in which one package was installed, without additional packages."""

    python: Path

    def run(self, code: str) -> str:
        """Run Python code in the environment, and return its output."""
        command = [str(self.python), "-I", "-c", code]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        return run.stdout.strip()

    def distributions(self) -> set[str]:
        """Return the names of all installed distributions."""
        listed: list[str] = json.loads(
            self.run(
                "import json; from importlib.metadata import distributions;"
                "print(json.dumps([one.name.lower() for one in distributions()]))"
            )
        )
        return set(listed)

    def installed_bytes(self) -> int:
        """Return the size of the installed packages on disk, in bytes."""
        site = Path(self.run("import sysconfig; print(sysconfig.get_path('platlib'))"))
        return sum(path.stat().st_size for path in site.rglob("*") if path.is_file())


Wheels = dict[str, Path]
Install = Callable[[str], CleanEnvironment]


@pytest.fixture(scope="session")
def wheels() -> Wheels:
    """The wheels under test by distribution; nox builds them and passes their paths."""
    paths = [Path(path) for path in os.environ["MESH_WHEELS"].split(os.pathsep)]
    return {path.name.split("-")[0].replace("_", "-"): path for path in paths}


@pytest.fixture(scope="session")
def install(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Install a package into a separate environment, once per session."""
    made: dict[str, CleanEnvironment] = {}
    uv = [sys.executable, "-m", "uv"]

    def install_one(name: str) -> CleanEnvironment:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            subprocess.run([*uv, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
            # The other packages are not on an index: uv finds them among the wheels that were
            # built.
            links = [part for path in wheels.values() for part in ("-f", str(path.parent))]
            target = ["-p", str(folder), *links, str(wheels[name])]
            subprocess.run([*uv, "pip", "install", "-q", *target], check=True)
            made[name] = CleanEnvironment(folder / "bin" / "python")
        return made[name]

    return install_one
