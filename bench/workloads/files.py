"""A directory of the client on a host is mounted, read and edited, compared with a tmpfs copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bench.accounting import descendants, name_of, own_bytes
from bench.page_cache import cached_bytes, evict
from bench.record import Recorder
from bench.scale import QUICK, Scale
from bench.trees import MIB, SMALL_BYTES, bytes_of, make_small, make_tree, read_all

if TYPE_CHECKING:
    from bench.drivers.mesh_fs import FilesDriver

_MEMORY_FOLDER = Path("/dev/shm")
_ROUNDS = 5
#: Number of rounds of operations that take seconds.
_LONG_ROUNDS = 3
#: A host that has read everything counts as idle when nothing has changed for this time.
_REST_S, _REST_LIMIT_S = 1.0, 15.0
_EDITED, _LARGE = Path("folder0/file0"), Path("large0")


def whole(driver: FilesDriver, scale: Scale, record: Recorder) -> None:
    """Mount a tree of small and large files, and read and edit it."""
    with _place() as place:
        source, mountpoint, cache = place / "source", place / "mount", place / "chunks"
        large = make_tree(source, scale)
        record.value("copy", min(_copy_s(source, place / "copy") for _ in range(3)), "s")
        record.value("read", min(_seconds(lambda: read_all(source)) for _ in range(3)), "s")
        driver.start(1)
        started = time.perf_counter()
        handler = driver.mount(source, mountpoint, cache)
        record.value("open", time.perf_counter() - started, "s")
        assert read_all(mountpoint) == bytes_of(source)
        record.value("cold", time.perf_counter() - started, "s")
        record.value("again", min(_seconds(lambda: read_all(mountpoint)) for _ in range(3)), "s")
        (source / _EDITED).write_bytes(os.urandom(SMALL_BYTES))
        before, started = driver.moved(handler), time.perf_counter()
        driver.refresh(handler)
        assert (mountpoint / _EDITED).read_bytes() == (source / _EDITED).read_bytes()
        record.value("edit", time.perf_counter() - started, "s")
        record.value("edit_kib", (driver.moved(handler) - before) / 1024, "KiB")
        content = (source / _LARGE).read_bytes()
        (source / _LARGE).write_bytes(content[: large // 2] + b"a line\n" + content[large // 2 :])
        before = driver.moved(handler)
        driver.refresh(handler)
        assert (mountpoint / _LARGE).read_bytes() == (source / _LARGE).read_bytes()
        record.value("line_kib", (driver.moved(handler) - before) / 1024, "KiB")
        driver.unmount(handler)
        started = time.perf_counter()
        handler = driver.mount(source, mountpoint, cache)
        record.value("second", time.perf_counter() - started, "s")
        assert read_all(mountpoint) == bytes_of(source)
        record.value("second_kib", driver.moved(handler) / 1024, "KiB")
        driver.unmount(handler)


def rsync(driver: FilesDriver, scale: Scale, record: Recorder) -> None:
    """Copy the same tree to another folder with `rsync`, again, and after an edit."""
    if shutil.which("rsync") is None:
        record.left_out("rsync", "it is not installed")
        return
    with _place() as place:
        source = place / "source"
        make_tree(source, scale)
        words = ["rsync", "-a", "--delete", f"{source}/", f"{place}/copy/"]

        def sync() -> object:
            return subprocess.run(words, check=True)

        record.value("cold", _seconds(sync), "s")
        record.value("again", min(_seconds(sync) for _ in range(3)), "s")
        (source / _EDITED).write_bytes(os.urandom(SMALL_BYTES))
        record.value("edit", _seconds(sync), "s")


def small(driver: FilesDriver, scale: Scale, record: Recorder) -> None:
    """Walk many small files and read them, after all of them have been read before."""
    with _small_files(scale) as place:
        driver.start(1)
        handler = driver.mount(place / "source", place / "mount", place / "chunks")
        _record_best(record, read_all, place / "source", place / "mount")
        driver.unmount(handler)


def imports(driver: FilesDriver, scale: Scale, record: Recorder) -> None:
    """Import torch from a mount of the installed packages, and from the original folder."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        record.left_out("import of torch", "it is not installed")
        return
    source = Path(spec.origin).parent.parent
    with _place(Path(tempfile.gettempdir())) as place:
        # Compiles modules that have no bytecode yet.
        _import_torch(source)
        driver.start(1)
        handler = driver.mount(source, place / "mount", place / "chunks", is_prefetched=False)
        _record_best(record, _import_torch, source, place / "mount", _LONG_ROUNDS)
        driver.unmount(handler)


def memory(driver: FilesDriver, scale: Scale, record: Recorder) -> None:
    """Measure the memory of a host that has read everything, and how much can be reclaimed."""
    with _place() as place, _place(Path(tempfile.gettempdir())) as disk:
        source, mountpoint, chunks = place / "source", place / "mount", disk / "chunks"
        make_tree(source, scale)
        tree = bytes_of(source)
        record.value("tree", tree / MIB, "MiB")
        driver.start(1)
        handler = driver.mount(source, mountpoint, chunks)
        assert read_all(mountpoint) == tree
        _wait_until_at_rest(chunks)
        parts = {
            "process": _own_bytes(driver.process),
            "shown": cached_bytes(mountpoint),
            "kept": cached_bytes(chunks),
        }
        for metric, nbytes in parts.items():
            record.value(metric, nbytes / MIB, "MiB")
        record.value("all", sum(parts.values()) / MIB, "MiB")
        evict(mountpoint)
        evict(chunks)
        left = _own_bytes(driver.process) + cached_bytes(mountpoint) + cached_bytes(chunks)
        record.value("left", left / MIB, "MiB")
        assert read_all(mountpoint) == tree
        driver.unmount(handler)


def _wait_until_at_rest(chunks: Path) -> None:
    """Wait until a host has dropped its part of the page cache, which depends on the disk."""
    before, until = -1, time.perf_counter() + _REST_LIMIT_S
    while (cached := cached_bytes(chunks)) != before and time.perf_counter() < until:
        before = cached
        time.sleep(_REST_S)


def _record_best(
    record: Recorder,
    use: Callable[[Path], object],
    source: Path,
    mountpoint: Path,
    rounds: int = _ROUNDS,
) -> None:
    """Use both trees in turn, and keep the best round; the first round only warms up."""
    roots = {"plain": source, "warm": mountpoint}
    best = dict.fromkeys(roots, float("inf"))
    for number in range(rounds + 1):
        for metric, root in roots.items():
            took = _seconds(lambda root=root: use(root))  # type: ignore[misc]
            if number:
                best[metric] = min(best[metric], took)
    for metric, took in best.items():
        record.value(metric, took, "s")


@contextmanager
def _place(folder: Path = _MEMORY_FOLDER) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="mesh-bench-files-", dir=folder))
    try:
        yield place
    finally:
        shutil.rmtree(place)


@contextmanager
def _small_files(scale: Scale) -> Iterator[Path]:
    with _place() as place:
        make_small(place / "source", 10 if scale is QUICK else 100, 4 << 10)
        yield place


def _copy_s(source: Path, target: Path) -> float:
    took = _seconds(lambda: subprocess.run(["cp", "-a", source, target], check=True))
    shutil.rmtree(target)
    return took


def _import_torch(root: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import torch; print(torch.__file__)"
    words = [sys.executable, "-S", "-c", code]
    shown = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert shown.startswith(f"{root}/"), shown


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _own_bytes(name: str) -> int:
    """Return the memory that is not backed by files of the largest descendant of this name."""
    largest = 0
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            if name_of(pid) == name:
                largest = max(largest, own_bytes(pid))
    return largest
