"""Ordinary users of one machine that run programs of tests."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: The root of the source tree; every user can import `tests` from it.
TREE = Path(__file__).resolve().parents[2]

#: Binds the environment and the tree to public folders, then drops all privileges of root. The
#: original folders may be below a home directory that only its owner can enter. The interpreter
#: must be at its original path: a private folder above it is hidden by one that contains nothing
#: else.
_ENTER = """
set -e
environment=$1 public_environment=$2 tree=$3 public_tree=$4
interpreter=$5 public_interpreter=$6 private=$7 uid=$8
shift 8
mount --bind "$environment" "$public_environment"
mount --bind "$tree" "$public_tree"
if [ -n "$private" ]; then
    mount --bind "$interpreter" "$public_interpreter"
    mount -t tmpfs -o mode=755 none "$private"
    mkdir -p "$interpreter"
    mount --bind "$public_interpreter" "$interpreter"
fi
cd /
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all -- "$@"
"""


class User:
    """A user without privileges: a uid, a private home folder and a temporary folder.

    Args:
        name: The name of the user in test output.
        uid: The user id, also used as the group id.
        place: A folder that every user can enter; shared by the users of one test session.
    """

    def __init__(self, name: str, uid: int, place: Path) -> None:
        self.name = name
        self.uid = uid
        self.home = place / name
        self._environment = place / "environment"
        self._tree = place / "tree"
        self._interpreter = place / "interpreter"
        for folder in (self._environment, self._tree, self._interpreter):
            folder.mkdir(exist_ok=True)
        for folder in (self.home, self.home / "tmp", self.home / "run"):
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, uid, uid)

    @property
    def python(self) -> str:
        """The path of the interpreter, as this user sees it."""
        return str(self._environment / "bin" / "python")

    def popen(
        self, command: list[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command as this user.

        Args:
            command: Program and arguments.
            env: Variables in addition to the few that every user has.
            options: Passed to `subprocess.Popen`.
        """
        paths = [sys.prefix, str(self._environment), str(TREE), str(self._tree)]
        paths += [sys.base_prefix, str(self._interpreter), _private_above(Path(sys.base_prefix))]
        enter = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", *paths, str(self.uid), *command]
        return subprocess.Popen(
            enter, env={**self._variables(), **(env or {})}, text=True, **options
        )

    def run(self, command: list[str], *, timeout_s: float = 60.0, **options: Any) -> str:
        """Run a command as this user and return its standard output and standard error."""
        with self.popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
        ) as process:
            try:
                return process.communicate(timeout=timeout_s)[0]
            except BaseException:
                process.kill()
                raise

    def run_python(self, script: str, *args: str, timeout_s: float = 60.0, **options: Any) -> str:
        """Run Python source as this user and return its standard output and standard error."""
        return self.run([self.python, "-c", script, *args], timeout_s=timeout_s, **options)

    def start_python(self, script: str, *args: str, **options: Any) -> subprocess.Popen[str]:
        """Start Python source as this user, with pipes for its input and output."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return self.popen([self.python, "-c", script, *args], **{**pipes, **options})

    def _variables(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PATH": os.pathsep.join([str(self._environment / "bin"), os.defpath, "/usr/sbin"]),
            "PYTHONPATH": str(self._tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.home / "tmp"),
            "USER": self.name,
            "XDG_RUNTIME_DIR": str(self.home / "run"),
        }


def _private_above(folder: Path) -> str:
    """Return the outermost parent folder that ordinary users cannot enter, or an empty string."""
    parents = reversed(folder.parents)
    return next((str(one) for one in parents if not one.stat().st_mode & stat.S_IXOTH), "")
