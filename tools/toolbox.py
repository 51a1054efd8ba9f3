"""An environment outside the repository with pinned versions of uv, nox and build backends."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from tools import interpreter
from tools.steps import run_quietly, step
from tools.workspace import ROOT, cache_folder, read_toml

CONSTRAINTS = ROOT / "tools" / "constraints.txt"
OVERRIDES = ROOT / "tools" / "overrides.txt"


class ToolMissing(Exception):
    """A required program is missing on this machine and cannot be installed automatically."""


def environment() -> dict[str, str]:
    """Return the variables that pin the behaviour of uv, cargo and Python, wherever they run.

    Python writes bytecode even if the caller's environment forbids it: without bytecode, each of
    the thousands of processes that the tests start would compile all its imports, including torch.
    """
    cache = cache_folder()
    return {
        "CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR", str(cache / "cargo-target")),
        "PATH": os.pathsep.join([str(_bin()), os.environ.get("PATH", os.defpath), _cargo_bin()]),
        "PYTHONDONTWRITEBYTECODE": "",
        "UV_CONSTRAINT": str(CONSTRAINTS),
        "UV_OVERRIDE": str(OVERRIDES),
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_SYSTEM_CERTS": "1",
    }


def ensure() -> Path:
    """Create the toolbox if it does not exist, and return its Python.

    Raises:
        ToolMissing: cargo is not installed, or this Python cannot create environments.
    """
    _check_machine()
    folder = _folder()
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    with step(f"installing the build tools into {folder}", "about 15 s"):
        made = subprocess.run([interpreter.chosen(), "-m", "venv", str(folder)])
        if made.returncode != 0:
            raise ToolMissing("this python cannot make environments: install its venv module")
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install += ["--constraint", str(CONSTRAINTS)]
        run_quietly([*install, *_requirements()])
    (folder / "complete").touch()
    return python


def program(name: str) -> str:
    """Return the path of a program in the toolbox."""
    return str(_bin() / name)


def _check_machine() -> None:
    if not shutil.which("cargo", path=environment()["PATH"]):
        raise ToolMissing("no cargo on PATH: install a stable Rust toolchain")


def _requirements() -> list[str]:
    group: list[str] = read_toml(ROOT / "pyproject.toml")["dependency-groups"]["toolbox"]
    return group


def _folder() -> Path:
    recipe = json.dumps(
        [interpreter.describe(interpreter.chosen()), _requirements(), CONSTRAINTS.read_text()]
    )
    return cache_folder() / "toolbox" / hashlib.sha256(recipe.encode()).hexdigest()[:16]


def _bin() -> Path:
    return _folder() / "bin"


def _cargo_bin() -> str:
    return str(Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")) / "bin")
