"""A directory of the client on a host: mounted, read, edited; beside a copy of it in tmpfs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.record import Recorder
from bench.scale import QUICK, Scale

if TYPE_CHECKING:
    from bench.drivers.mesh_fs import FilesDriver

_MIB = 1 << 20
_SMALL_BYTES = 8 << 10
_BUFFER = bytearray(_MIB)
_ROUNDS = 5


def whole(driver: FilesDriver, scale: Scale, record: Recorder) -> None:
    """Mounts a tree of small and large files, and reads and edits it."""
    folders, large = (4, 12 * _MIB) if scale is QUICK else (40, 117 * _MIB)
    with _place() as place:
        source, mountpoint, cache = place / "source", place / "mount", place / "chunks"
        _make_small(source, folders, 100, _SMALL_BYTES)
        for number in range(4):
            (source / f"large{number}").write_bytes(os.urandom(large))
        record.value("copy", min(_copy_s(source, place / "copy") for _ in range(3)), "s")
        record.value("read", min(_seconds(lambda: _read_all(source)) for _ in range(3)), "s")
        driver.start(1)
        started = time.perf_counter()
        handler = driver.mount(source, mountpoint, cache)
        record.value("open", time.perf_counter() - started, "s")
        assert _read_all(mountpoint) == _read_all_sizes(source)
        record.value("cold", time.perf_counter() - started, "s")
        record.value("again", min(_seconds(lambda: _read_all(mountpoint)) for _ in range(3)), "s")
        record.value("memory", _resident(driver.process) / _MIB, "MiB")
        edited, line = Path("folder0/file0"), Path("large0")
        (source / edited).write_bytes(os.urandom(_SMALL_BYTES))
        before, started = driver.moved(handler), time.perf_counter()
        driver.refresh(handler)
        assert (mountpoint / edited).read_bytes() == (source / edited).read_bytes()
        record.value("edit", time.perf_counter() - started, "s")
        record.value("edit_kib", (driver.moved(handler) - before) / 1024, "KiB")
        content = (source / line).read_bytes()
        (source / line).write_bytes(content[: large // 2] + b"a line\n" + content[large // 2 :])
        before = driver.moved(handler)
        driver.refresh(handler)
        assert (mountpoint / line).read_bytes() == (source / line).read_bytes()
        record.value("line_kib", (driver.moved(handler) - before) / 1024, "KiB")
        driver.unmount(handler)
        started = time.perf_counter()
        handler = driver.mount(source, mountpoint, cache)
        record.value("second", time.perf_counter() - started, "s")
        driver.unmount(handler)


def small(driver: FilesDriver, scale: Scale, record: Recorder) -> None:
    """Walks many small files and reads them, when all of them have been read before."""
    folders = 10 if scale is QUICK else 100
    with _place() as place:
        source, mountpoint = place / "source", place / "mount"
        _make_small(source, folders, 100, 4 << 10)
        driver.start(1)
        handler = driver.mount(source, mountpoint, place / "chunks")
        _record_best(record, _read_all, source, mountpoint)
        driver.unmount(handler)


def imports(driver: FilesDriver, scale: Scale, record: Recorder) -> None:
    """Imports a package with compiled parts from a mount."""
    spec = importlib.util.find_spec("numpy")
    if spec is None or spec.origin is None:
        record.left_out("import of numpy", "numpy is not installed")
        return
    site = Path(spec.origin).parent.parent
    with _place() as place:
        source, mountpoint = place / "source", place / "mount"
        for folder in site.glob("numpy*"):
            shutil.copytree(folder, source / folder.name)
        subprocess.run([sys.executable, "-m", "compileall", "-q", source], check=False)
        driver.start(1)
        handler = driver.mount(source, mountpoint, place / "chunks")
        _record_best(record, _import_numpy, source, mountpoint)
        driver.unmount(handler)


def _record_best(
    record: Recorder, use: Callable[[Path], object], source: Path, mountpoint: Path
) -> None:
    """Uses both trees in turn, and keeps the best of the rounds after the first, which warms."""
    roots = {"plain": source, "warm": mountpoint}
    best = dict.fromkeys(roots, float("inf"))
    for number in range(_ROUNDS + 1):
        for metric, root in roots.items():
            took = _seconds(lambda root=root: use(root))  # type: ignore[misc]
            if number:
                best[metric] = min(best[metric], took)
    for metric, took in best.items():
        record.value(metric, took, "s")


@contextmanager
def _place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="mesh-bench-files-", dir="/dev/shm"))
    try:
        yield place
    finally:
        shutil.rmtree(place)


def _make_small(root: Path, folders: int, files: int, nbytes: int) -> None:
    for folder in range(folders):
        (root / f"folder{folder}").mkdir(parents=True)
        for file in range(files):
            (root / f"folder{folder}/file{file}").write_bytes(os.urandom(nbytes))


def _copy_s(source: Path, target: Path) -> float:
    took = _seconds(lambda: subprocess.run(["cp", "-a", source, target], check=True))
    shutil.rmtree(target)
    return took


def _read_all(root: Path) -> int:
    """Walks a tree and reads each file; gives the bytes."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            file = os.open(f"{folder}/{name}", os.O_RDONLY)
            os.fstat(file)
            while count := os.readv(file, [_BUFFER]):
                total += count
            os.close(file)
    return total


def _read_all_sizes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def _import_numpy(root: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import numpy"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _resident(name: str) -> int:
    """Gives the resident bytes of the largest process of a name, shared memory included."""
    largest = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue
        if fields["Name"].strip().startswith(name[:15]) and "VmRSS" in fields:
            largest = max(largest, int(fields["VmRSS"].split()[0]) << 10)
    return largest
