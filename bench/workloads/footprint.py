"""The cost of importing, downloading and storing the package."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import zlib
from pathlib import Path

from bench.record import Recorder
from bench.scale import Scale

_MODULES = {
    "mesh": ("torchmesh-core", "mesh_core"),
    "monarch": ("torchmonarch", "monarch.actor"),
    "ray": ("ray", "ray"),
    "dask": ("distributed", "distributed"),
    "xoscar": ("xoscar", "xoscar"),
    "torchrun": ("torch", "torch.distributed.run"),
}


def imports(driver: str, scale: Scale, record: Recorder) -> None:
    """Start fresh interpreters that import the package and exit."""
    _, module = _MODULES.get(driver, ("", ""))
    program = f"import {module}" if module else "pass"
    _import_cpu_s(program)
    cpu = [_import_cpu_s(program) for _ in range(scale.imports)]
    record.value("import_cpu", statistics.median(cpu) * 1e3, "ms", n=len(cpu))


def sizes(driver: str, scale: Scale, record: Recorder) -> None:
    """Add up the installed files, and their compressed size (as in a wheel)."""
    name, _ = _MODULES[driver]
    files = _files(name)
    record.value("wheel", sum(map(_deflated, files)) / 1e6, "MB", files=len(files))
    installed = {dist: _size(_files(dist)) for dist in _closure(name)}
    record.value(
        "installed_with_dependencies",
        sum(installed.values()) / 1e6,
        "MB",
        each={dist: round(size / 1e6, 1) for dist, size in installed.items()},
    )


def _import_cpu_s(program: str) -> float:
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise OSError(f"{program!r} ended with {child.returncode}: run it by hand")
    return usage.ru_utime + usage.ru_stime


def _files(name: str) -> list[Path]:
    """Return the files of a wheel, without files that the installation compiled or wrote."""
    dist = importlib.metadata.distribution(name)
    files = [Path(str(dist.locate_file(f))) for f in dist.files or []]
    origin = json.loads(dist.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        raise OSError(f"{name} is installed as an editable package: install its wheel")
    return [f for f in files if f.is_file() and f.suffix != ".pyc"]


def _size(files: list[Path]) -> int:
    return sum(f.stat().st_size for f in files)


def _deflated(path: Path) -> int:
    compressor = zlib.compressobj()
    size = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            size += len(compressor.compress(block))
    return size + len(compressor.flush())


def _closure(name: str) -> list[str]:
    """Return the distribution and all its installed dependencies."""
    found: list[str] = []
    todo = [name]
    while todo:
        dist = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if dist in found:
            continue
        try:
            requires = importlib.metadata.requires(dist) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.append(dist)
        for line in requires:
            match = re.match(r"[A-Za-z0-9._-]+", line)
            if match and "extra ==" not in line:
                todo.append(match.group())
    return found
