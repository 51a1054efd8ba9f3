"""Compiled bytecode of installed packages, shared between environments and clones.

Python stores the bytecode of a module next to its source, so each environment of a run would
compile the same packages again. Bytecode is valid for the modification time and the size of its
source. The installer links the files of a package into every environment, with the same time, so
the bytecode of one environment is valid in the others.
"""

import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tools.workspace import cache_folder

_CACHE_NAME = "__pycache__"
# A bytecode file begins with a magic number, flags, and the time and size of the source, as 32-bit
# words. Flags other than 0 mean that it is validated in another way.
_HEADER = struct.Struct("<4sIII")
_WORD = 0xFFFF_FFFF


def restore(python: Path) -> None:
    """Link the stored bytecode that is valid in an environment into it.

    Args:
        python: The interpreter of the environment.
    """
    site, store = _folders(python)
    for stored in _bytecode_in(store, site):
        target = site / stored.relative_to(store)
        if not target.exists() and _is_valid(stored, _source_of(target)):
            _link(stored, target)


def store(python: Path) -> None:
    """Store the bytecode that was compiled in an environment since `restore`.

    Args:
        python: The interpreter of the environment.
    """
    site, store = _folders(python)
    for compiled in _bytecode_in(site, site):
        target = store / compiled.relative_to(site)
        with suppress(FileNotFoundError):
            if compiled.samefile(target):
                continue
        if _is_valid(compiled, _source_of(compiled)):
            _link(compiled, target)


def _folders(python: Path) -> tuple[Path, Path]:
    """Return the folder of the installed packages, and the folder of their stored bytecode."""
    code = (
        "import sys, sysconfig; print(sysconfig.get_path('purelib'), sys.implementation.cache_tag)"
    )
    site, tag = subprocess.check_output([python, "-I", "-c", code], text=True).split()
    return Path(site), cache_folder() / "bytecode" / tag


def _bytecode_in(folder: Path, site: Path) -> Iterator[Path]:
    """Yield the bytecode files in a tree, without branches whose folder the environment lacks."""
    for parent, folders, files in os.walk(folder):
        if Path(parent).name == _CACHE_NAME:
            # Test frameworks add files with other names, which depend on their settings.
            yield from (Path(parent, name) for name in files if name.count(".") == 2)
            continue
        inside = site / Path(parent).relative_to(folder)
        folders[:] = [one for one in folders if one == _CACHE_NAME or (inside / one).is_dir()]


def _source_of(compiled: Path) -> Path:
    return compiled.parent.parent / f"{compiled.name.partition('.')[0]}.py"


def _is_valid(compiled: Path, source: Path) -> bool:
    try:
        status = source.stat()
        with compiled.open("rb") as file:
            found: tuple[bytes, int, int, int] = _HEADER.unpack(file.read(_HEADER.size))
    except (OSError, struct.error):
        return False
    return found[1:] == (0, int(status.st_mtime) & _WORD, status.st_size & _WORD)


def _link(source: Path, target: Path) -> None:
    """Create a link atomically, because other sessions use the same folders."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with suppress(OSError):
        os.link(source, temporary)
        os.replace(temporary, target)
