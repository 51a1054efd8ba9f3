"""The shell script that sets the name and the private folders of a host."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.hosts.world.addresses import Place, hosts_file
from tools.workspace import ROOT

#: Folders that different machines never share: local programs communicate through files there.
PRIVATE_FOLDERS = {"/tmp": "1777", "/var/tmp": "1777", "/dev/shm": "1777", "/run": "0755"}

#: The home folder of a host, in a private folder.
HOME = "/run/home"

#: A folder is assembled here before it is moved to its place; every Linux has this directory.
_STAGE = "/mnt"


def private_files_script(own: Place, places: Sequence[Place], shared: Iterable[Path]) -> str:
    """Return a script that hides the machine's private folders behind new, empty ones.

    Args:
        own: The host that runs the script.
        places: All hosts of the world.
        shared: Folders and files that stay visible, even inside a private folder.
    """
    kept = {*_folders_of_python(), *(path.resolve() for path in shared)}
    lines = ["set -eu"]
    for folder, mode in PRIVATE_FOLDERS.items():
        if Path(folder).is_dir() and not Path(folder).is_symlink():
            lines += _private_folder(folder, mode, kept)
    lines += [
        f"mkdir -m 700 {HOME}",
        f"hostname {shlex.quote(own.name)}",
        f"cat > /run/hosts <<'END'\n{hosts_file(own, places)}END",
        "mount -n --bind /run/hosts /etc/hosts",
        # An unknown name fails immediately, because no name server is configured.
        ": > /run/resolv.conf",
        "if [ -f /etc/resolv.conf ]; then mount -n --bind /run/resolv.conf /etc/resolv.conf; fi",
    ]
    return "\n".join(lines) + "\n"


def _private_folder(folder: str, mode: str, kept: Iterable[Path]) -> list[str]:
    lines = [f"mount -n -t tmpfs -o mode={mode} private {_STAGE}"]
    for path in _outermost(path for path in kept if Path(folder) in path.parents):
        source, target = shlex.quote(str(path)), shlex.quote(_STAGE + str(path)[len(folder) :])
        if path.is_dir():
            lines.append(f"mkdir -p {target}")
        else:
            lines.append(f'mkdir -p "$(dirname {target})"; : > {target}')
        lines.append(f"mount -n --rbind {source} {target}")
    lines.append(f"mount -n --move {_STAGE} {folder}")
    return lines


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that are not inside another of the paths."""
    found = set(paths)
    return sorted(path for path in found if not found.intersection(path.parents))


def _folders_of_python() -> Iterable[Path]:
    """Yield the folders that this Python and the repository need, wherever they are."""
    for name in (str(ROOT), sys.prefix, sys.base_prefix, *sys.path):
        path = Path(name).resolve()
        if name and path.exists():
            yield path
