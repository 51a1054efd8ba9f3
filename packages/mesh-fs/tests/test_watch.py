"""Mounts that show changes without an explicit refresh."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh_core import this_host
from mesh_core.testing import wait_until
from mesh_fs import (
    CacheOptions,
    HostStatus,
    MountError,
    MountHandler,
    MountOptions,
    WatchError,
    remotemount,
)
from mesh_fs._watch.inotify import InotifyWatches

LIMIT_S = 30.0


@pytest.fixture
def watched(source: Path, mountpoint: Path, cache: CacheOptions) -> Iterator[MountHandler]:
    """A mount with change notification, by any method that this machine supports."""
    with remotemount(this_host(), source, mountpoint, cache=cache, watch=True) as handler:
        yield handler


def seen(path: Path) -> str | None:
    try:
        return path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # The file was overwritten before it was fetched: the next refresh shows the new content.
        if error.errno != errno.EIO:
            raise
        return None


def test_changes_are_seen(source: Path, mountpoint: Path, watched: MountHandler) -> None:
    module = "package/module.py"
    assert seen(mountpoint / module) == "ANSWER = 42\n"
    (source / module).write_text("ANSWER = 43\n")
    wait_until(lambda: seen(mountpoint / module) == "ANSWER = 43\n", LIMIT_S)
    (source / "other").write_text("ANSWER = 44\n")
    (source / "other").replace(source / module)
    wait_until(lambda: seen(mountpoint / module) == "ANSWER = 44\n", LIMIT_S)
    (source / module).unlink()
    wait_until(lambda: seen(mountpoint / module) is None, LIMIT_S)
    (source / "script.sh").chmod(0o700)
    wait_until(lambda: (mountpoint / "script.sh").stat().st_mode & 0o777 == 0o700, LIMIT_S)
    status = watched.status().item()
    assert isinstance(status, HostStatus)
    assert status.is_open


def test_new_directories_are_watched_too(
    source: Path, mountpoint: Path, watched: MountHandler
) -> None:
    (source / "a/b/c").mkdir(parents=True)
    (source / "a/b/c/first").write_text("1")
    wait_until(lambda: seen(mountpoint / "a/b/c/first") == "1", LIMIT_S)
    (source / "a/b/c/second").write_text("2")
    wait_until(lambda: seen(mountpoint / "a/b/c/second") == "2", LIMIT_S)
    (source / "a/b").rename(source / "moved")
    wait_until(lambda: seen(mountpoint / "moved/c/second") == "2", LIMIT_S)
    assert not (mountpoint / "a/b").exists()
    (source / "moved/c/second").write_text("3")
    wait_until(lambda: seen(mountpoint / "moved/c/second") == "3", LIMIT_S)
    shutil.rmtree(source / "moved")
    (source / "moved/c").mkdir(parents=True)
    (source / "moved/c/second").write_text("4")
    wait_until(lambda: seen(mountpoint / "moved/c/second") == "4", LIMIT_S)
    (source / "moved/c/second").write_text("5")
    wait_until(lambda: seen(mountpoint / "moved/c/second") == "5", LIMIT_S)


def test_a_file_that_is_written_continuously_is_refreshed(
    source: Path, mountpoint: Path, watched: MountHandler
) -> None:
    count = 0

    def is_seen_while_written() -> bool:
        nonlocal count
        count += 1
        (source / "log").write_text(f"{count}")
        return seen(mountpoint / "log") is not None

    until = time.monotonic() + LIMIT_S
    while not is_seen_while_written():
        assert time.monotonic() < until


def test_watching_starts_on_request_and_stops_with_the_mount(
    source: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    unpacked = MountOptions(backend="unpack")
    handler = remotemount(this_host(), source, mountpoint, cache=cache, mount=unpacked)
    with pytest.raises(MountError, match="open"):
        handler.watch()
    with handler:
        (source / "early").write_text("before")
        handler.watch()
        handler.watch()
        wait_until(lambda: seen(mountpoint / "early") == "before", LIMIT_S)
        assert handler.refresh() is False
    with handler:
        assert seen(mountpoint / "early") == "before"


def test_a_queue_overflow_counts_as_a_change_of_everything(tmp_path: Path) -> None:
    held = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if held > 100_000:
        pytest.skip(f"the queue holds {held} events")
    watches = InotifyWatches()
    assert watches.watch_only([str(tmp_path)]) is True
    assert watches.watch_only([str(tmp_path)]) is False
    for number in range(held // 2 + 1):
        # The kernel merges identical consecutive events.
        os.close(os.open(tmp_path / f"{number % 2}", os.O_CREAT))
        os.unlink(tmp_path / f"{number % 2}")
    assert watches.take() is True
    while watches.take():
        pass
    (tmp_path / "new").touch()
    assert watches.take() is True
    watches.close()


def test_too_many_directories_are_an_error(tmp_path: Path) -> None:
    watches = InotifyWatches(watches_max=2)
    with pytest.raises(WatchError, match="3 directories are too many"):
        watches.watch_only([str(tmp_path / name) for name in "abc"])
    watches.close()
