"""Versions of Python and of packages, compared when a worker joins a job."""

from __future__ import annotations

import sys
from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["differences", "refusal", "versions_here"]

_PYTHON = "python"
_CORE = "torchmesh-core"
# More modules than programs import that have a version.
_COUNT_MAX = 200
_LEN_MAX = 50


def versions_here() -> dict[str, str]:
    """Return the versions of Python, of Mesh and of the modules that this process has imported."""
    found = {_PYTHON: _python(), _CORE: _version_of(_CORE) or ""}
    # Other threads import modules; unlike `list(items())`, a copy cannot be interrupted by them.
    for name, module in sys.modules.copy().items():
        # Not by `getattr`: the `__getattr__` of a module may warn that the name is deprecated.
        attributes = {} if "." in name else getattr(module, "__dict__", {})
        version = attributes.get("__version__")
        if isinstance(version, str) and len(version) <= _LEN_MAX and len(found) < _COUNT_MAX:
            found[name] = version
    return found


def refusal(theirs: Mapping[str, str]) -> str | None:
    """Return why a worker cannot serve a program with these versions; None if it can.

    Classes and functions of a script are sent as the code of one feature version of Python.
    """
    wanted = theirs.get(_PYTHON, _python())
    if _feature(wanted) == _feature(_python()):
        return None
    return (
        f"the program runs Python {wanted}, and this worker Python {_python()}: start the worker "
        "with the Python of the program, or set check_versions=False and start processes with a "
        "bootstrap_command that does"
    )


def differences(theirs: Mapping[str, str]) -> list[str]:
    """Describe the packages that a worker has in other versions than the program."""
    found = []
    for name, version in theirs.items():
        here = None if name == _PYTHON else _version_of(name)
        if here is not None and version and _release(here) != _release(version):
            found.append(f"{name} {here} instead of {version}")
    return found


def _python() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def _release(version: str) -> str:
    """Return a version without its build, such as `+cu130`: modules and packages differ in it."""
    return version.partition("+")[0]


def _feature(version: str) -> list[str]:
    return version.split(".")[:2]


@cache
def _version_of(package: str) -> str | None:
    """Return the version of an installed package; None if there is none with this name."""
    # Few processes attach to workers, and the import takes long.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version(package)
    except (PackageNotFoundError, ValueError):
        return None
