"""Fixtures for mounts, and checks that nothing is left behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh_fs import CacheOptions


def mount_table(below: Path) -> list[str]:
    """Return the mount points below a folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(f"{below}/")]


def why_no_mounts() -> str | None:
    """Return the reason why this machine cannot mount anything, or None if it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "there is no /dev/fuse that this user may open"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "this user is not root, and there is no fusermount3"
    return None


def why_not(backend: str, *, writable: bool = False) -> str | None:
    """Return the reason why a way of mounting is not available here, or None if it is."""
    if writable and backend != "unpack" and os.geteuid() != 0:
        return "only root can write over mounts"
    known = Path("/proc/filesystems").read_text().split()
    if writable and backend != "unpack" and "overlay" not in known:
        return "this kernel has no overlayfs, or has not loaded it"
    return why_no_mounts() if backend == "fuse" else None


def needs(backend: str, *, writable: bool = False) -> None:
    """Skip a test if a way of mounting is not available on this machine."""
    if (why := why_not(backend, writable=writable)) is not None:
        pytest.skip(why)


@pytest.fixture
def needs_mounts() -> None:
    """Skip the test if this machine cannot mount anything."""
    if (why := why_no_mounts()) is not None:
        pytest.skip(why)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory of the client with all kinds of files."""
    root = tmp_path / "source"
    (root / "package/inner").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "package/module.py").write_text("ANSWER = 42\n")
    (root / "package/inner/large.bin").write_bytes(os.urandom(3_000_000))
    (root / "script.sh").write_text("#!/bin/sh\necho from the mount\n")
    (root / "script.sh").chmod(0o755)
    (root / "link").symlink_to("package/module.py")
    os.link(root / "script.sh", root / "same.sh")
    os.utime(root / "package/module.py", ns=(1_600_000_000_123_456_789,) * 2)
    return root


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    """The path for a mount; at the end nothing may be mounted or left there."""
    place = tmp_path / "mnt" / "there"
    yield place
    assert mount_table(tmp_path) == []
    assert not place.exists() or list(place.iterdir()) == []


@pytest.fixture
def cache(tmp_path: Path) -> CacheOptions:
    """A chunk store that only this test uses."""
    return CacheOptions(folder=str(tmp_path / "chunks"))
