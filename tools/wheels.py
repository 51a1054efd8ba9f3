"""Builds each wheel once per content, and returns the same file to later callers."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools import toolbox
from tools.cargo_tree import cargo_tree
from tools.steps import run_quietly, step
from tools.workspace import Package, cache_folder

#: Number of builds that are kept per package; older ones are deleted.
KEPT_PER_PACKAGE = 4

#: Files outside a package that affect its extension module.
RUST_FILES = ("Cargo.toml", "Cargo.lock", "rust-toolchain.toml")

#: The crates that several extension modules compile.
SHARED_CRATES = "crates"


def wheel(target: Package) -> Path:
    """Return the wheel of a package in its current state, building it if necessary.

    Raises:
        subprocess.CalledProcessError: The build failed; its output went to stderr.
    """
    wheels = cache_folder() / "wheels" / target.name
    wheels.mkdir(parents=True, exist_ok=True)
    with locked(wheels / ".lock"):
        folder = wheels / digest(target)
        if not folder.is_dir():
            _build(target, wheels / "unfinished")
            (wheels / "unfinished").rename(folder)
        os.utime(folder)
        _drop_oldest(wheels)
        (built,) = folder.glob("*.whl")
        return built


def digest(target: Package) -> str:
    """Return a digest of all inputs of a wheel: equal digests make equal wheels."""
    state = hashlib.sha256(toolbox.CONSTRAINTS.read_bytes())
    for path in sorted(_inputs(target)):
        state.update(f"{path.relative_to(target.root)}\0".encode())
        state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:20]


def _inputs(target: Package) -> Iterator[Path]:
    yield target.folder / "pyproject.toml"
    yield target.folder / "README.md"
    yield from filter(Path.is_file, [target.folder / "LICENSE"])
    folders = [target.folder / "src"]
    if (target.folder / "crates").is_dir():
        folders += [target.folder / "crates", target.root / SHARED_CRATES]
        yield from filter(Path.is_file, (target.root / name for name in RUST_FILES))
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so":
                yield path


def _build(target: Package, folder: Path) -> None:
    # Without build isolation the path of the interpreter is stable, so cargo does not recompile
    # pyo3.
    python = toolbox.ensure()
    shutil.rmtree(folder, ignore_errors=True)
    command = [toolbox.program("uv"), "build", "--wheel", "--no-build-isolation"]
    command += ["--no-create-gitignore", "--python", str(python), "--out-dir", str(folder)]
    env = {**os.environ, **toolbox.environment()}
    with (
        step(f"building the wheel of {target.name}", _usual_time(target)),
        cargo_tree(target.root) as tree,
    ):
        run_quietly([*command, str(tree / target.folder.relative_to(target.root))], env)


def _usual_time(target: Package) -> str:
    if (target.folder / "crates").is_dir():
        return "compiles Rust: about 1 minute the first time"
    return ""


def _drop_oldest(wheels: Path) -> None:
    folders = [path for path in wheels.iterdir() if path.is_dir()]
    folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for old in folders[KEPT_PER_PACKAGE:]:
        shutil.rmtree(old)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Prevent two runs or clones from building into the same folder."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
