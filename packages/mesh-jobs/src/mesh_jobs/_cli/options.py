"""Options that several commands share, and parsers for their values."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from mesh_core import ConfigError

__all__ = [
    "Context",
    "Environment",
    "Json",
    "MeshName",
    "OutputDir",
    "PerHost",
    "Rank",
    "Timeout",
    "Workdir",
    "options_of_mesh",
    "read_dims",
    "read_environment",
]

_PACKAGES = (
    "torchmesh-core",
    "torchmesh-fs",
    "torchmesh-jobs",
    "torchmesh-rdma",
    "torchmesh-telemetry",
    "torchmesh-tensor",
)

Context = Annotated[
    str | None, typer.Option("--context", "-c", help="Context of the job, if there are several.")
]
Environment = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME=VALUE", help="Set an environment variable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MeshName = Annotated[
    str | None, typer.Option("--mesh", "-m", help="Mesh of the job; required if there are several.")
]
OutputDir = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write each rank's output to this folder.")
]
PerHost = Annotated[
    list[str] | None,
    typer.Option("--per-host", metavar="[DIM=]N", help="Number of ranks on each host."),
]
Rank = Annotated[int | None, typer.Option("--host", "-H", help="Host of the mesh.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", "-t", help="Wait this many seconds for hosts.")
]
Workdir = Annotated[str | None, typer.Option("--workdir", "-w", help="Run in this folder.")]


def options_of_mesh(
    is_version_wanted: Annotated[
        bool, typer.Option("--version", help="Print the versions of the installed packages.")
    ] = False,
) -> None:
    """Handle the options that precede the command."""
    if is_version_wanted:
        sys.stdout.write("".join(f"{line}\n" for line in _installed()))
        raise typer.Exit


def _installed() -> list[str]:
    lines = []
    for name in _PACKAGES:
        try:
            lines.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return lines


def read_environment(given: list[str] | None) -> dict[str, str]:
    """Parse variables of the form `NAME=VALUE`.

    Raises:
        ConfigError: A variable has no name or no `=`.
    """
    found = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise ConfigError(f"{one!r} is not a variable: write NAME=VALUE")
        found[name] = value
    return found


def read_dims(given: list[str] | None) -> dict[str, int]:
    """Parse dimensions of the form `DIM=N`; `N` alone is the size of the dimension `procs`.

    Raises:
        ConfigError: A size is not a positive number.
    """
    dims = {}
    for one in given or ():
        name, _, size = one.rpartition("=")
        if not size.isdecimal() or int(size) < 1:
            raise ConfigError(f"{one!r} is not a dimension: write DIM=N with N from 1 up")
        dims[name or "procs"] = int(size)
    return dims
