"""Environments into which the published packages were installed, one for each package."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.workspace import Package

Install = Callable[[Package], Path]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Install a package with its dependencies, and return the Python of its environment.

    `MESH_INSTALL_OPTIONS` contains the options of uv that locate the packages.
    """
    options = shlex.split(os.environ["MESH_INSTALL_OPTIONS"])
    uv = [sys.executable, "-m", "uv"]

    def install_one(package: Package) -> Path:
        folder = tmp_path / "environment"
        subprocess.run([*uv, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
        command = [*uv, "pip", "install", "-q", "-p", str(folder), *options, package.distribution]
        subprocess.run(command, check=True)
        return folder / "bin" / "python"

    return install_one
