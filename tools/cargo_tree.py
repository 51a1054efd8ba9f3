"""A copy of the sources of all crates at one path in the cache, in which cargo builds.

Cargo compiles a crate again if one of its files is newer than its last build, or if its path is a
different one. In a new clone, every file is newer. In the copy, a file keeps its modification time
until its content changes, so cargo compiles only the crates that differ from its last build, in
whichever clone that was. Two clones with different sources cannot build at the same time.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.workspace import ROOT, cache_folder

#: The files that cargo, its tests and the builds of wheels read.
_SOURCES = (
    "*.toml",
    "Cargo.lock",
    "crates/**/*",
    "docs/protocol/*",
    "fuzz/*",
    "fuzz/src/**/*",
    "fuzz/targets/**/*",
    "packages/*/*",
    "packages/*/crates/**/*",
    "packages/*/src/**/*",
)


@contextmanager
def cargo_tree(root: Path = ROOT) -> Iterator[Path]:
    """Bring the copy up to date, and prevent changes to it in the context.

    Args:
        root: The clone whose sources are built.

    Yields:
        The root of the copy.
    """
    copy = cache_folder() / "cargo-tree"
    copy.mkdir(parents=True, exist_ok=True)
    with (copy.parent / "cargo-tree.lock").open("w") as lock:
        while True:
            # Builds of the same sources share the copy.
            fcntl.flock(lock, fcntl.LOCK_SH)
            if not _differences(root, copy):
                break
            fcntl.flock(lock, fcntl.LOCK_EX)
            _copy(root, copy)
        yield copy


def _copy(root: Path, copy: Path) -> None:
    changed = _differences(root, copy)
    for old in filter(Path.is_file, (copy / name for name in changed)):
        old.unlink()
    # Cargo regards each folder in `crates` as a crate, even an empty one.
    for folder in sorted(filter(Path.is_dir, copy.rglob("*")), reverse=True):
        with suppress(OSError):
            folder.rmdir()
    for name in changed:
        if (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, copy / name)


def _differences(root: Path, copy: Path) -> list[Path]:
    """Return the files, relative to the root, whose content or existence differs."""
    ours, theirs = _files(root), _files(copy)
    return sorted(
        name
        for name in ours | theirs
        if name not in ours
        or name not in theirs
        or (root / name).read_bytes() != (copy / name).read_bytes()
    )


def _files(root: Path) -> set[Path]:
    return {
        path.relative_to(root)
        for pattern in _SOURCES
        for path in root.glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
