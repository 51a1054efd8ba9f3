"""The registry of backends: entry points by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from mesh_jobs._backend.backend import Backend
from mesh_jobs._errors import JobError

__all__ = ["GROUP", "backend_names", "load_backend"]

GROUP = "mesh_jobs.backends"


def backend_names() -> list[str]:
    """Return the names of all installed backends."""
    return sorted({one.name for one in entry_points(group=GROUP)})


def load_backend(name: str, options: Mapping[str, Any]) -> Backend:
    """Create the backend with the given name.

    Raises:
        JobError: The backend is not installed, or cannot be loaded.
    """
    return _backend(name)(options)


@cache
def _backend(name: str) -> type[Backend]:
    # The result is cached because each step of a job needs the backend, and a lookup scans all
    # installed packages.
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        known = ", ".join(backend_names()) or "none"
        raise JobError(
            f"no backend is named {name!r}; installed are {known}: install the package that "
            f"defines it in the entry-point group {GROUP!r}"
        )
    try:
        backend = found[0].load()
    except ImportError as error:
        raise JobError(
            f"the backend {name!r} cannot be loaded: {error}: install what it needs, such as "
            f"torchmesh-jobs[{name}]"
        ) from error
    if not (isinstance(backend, type) and issubclass(backend, Backend)):
        raise JobError(
            f"the entry point {name!r} of {GROUP!r} is {backend!r}: it must be a class that "
            "derives from mesh_jobs.spi.Backend"
        )
    return backend
