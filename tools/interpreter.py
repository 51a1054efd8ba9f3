"""The interpreter of all environments.

The tests start thousands of processes. An interpreter that loads `libpython` as a shared library,
as pyenv builds it, takes three times as long to start and a third longer to import modules than
the one of a Linux distribution, which is a single program.
"""

import functools
import subprocess
import sys
from pathlib import Path

_MAPS = Path("/proc/self/maps")
# Environments need `ensurepip`, and packages without a wheel need the headers.
_CHECK = """
import ensurepip, os, sys, sysconfig, venv
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
print(sys.version_info[:2], "libpython" in open("/proc/self/maps").read())
"""


@functools.cache
def chosen() -> str:
    """Return the interpreter that runs the tools, or a faster one of the same version."""
    version = sys.version_info[:2]
    name = "python{}.{}".format(*version)
    own = Path(sys.base_prefix, "bin", name)
    system = Path("/usr/bin", name)
    if "libpython" in _MAPS.read_text() and system.exists():
        check = subprocess.run([system, "-I", "-c", _CHECK], capture_output=True, text=True)
        if check.stdout == f"{version} False\n":
            return str(system)
    return str(own) if own.exists() else sys.executable


def describe(interpreter: str) -> str:
    """Return the path and the time of installation, which identify a build."""
    path = Path(interpreter).resolve()
    return f"{path} {path.stat().st_mtime_ns}"
