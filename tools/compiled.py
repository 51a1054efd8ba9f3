"""Compiles third-party packages that have no wheel, once for all environments.

An installer would compile such a package again for each new environment if the index does not
report whether the source has changed.
"""

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from tools import toolbox
from tools.steps import run_quietly, step
from tools.wheels import locked
from tools.workspace import cache_folder

#: Packages without wheels; the dependency groups pin their versions.
WITHOUT_WHEELS = ("pyfuse3",)


def find_links(requirements: Iterable[str]) -> list[str]:
    """Return the options of uv for the compiled packages among pinned requirements.

    Raises:
        subprocess.CalledProcessError: A package could not be compiled; the output was shown.
    """
    pinned = [one for one in requirements if one.partition("==")[0] in WITHOUT_WHEELS]
    return [f"--find-links={_folder_with(one)}" for one in pinned]


def _folder_with(pinned: str) -> Path:
    folder = cache_folder() / "compiled" / f"{pinned}-{sys.implementation.cache_tag}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / ".lock"):
        if not folder.is_dir():
            _compile(pinned, folder)
    return folder


def _compile(pinned: str, folder: Path) -> None:
    unfinished = folder.with_name("unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [str(toolbox.ensure()), "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--wheel-dir", str(unfinished), pinned]
    with step(f"compiling {pinned}", "about 1 minute"):
        run_quietly(command)
    unfinished.rename(folder)
