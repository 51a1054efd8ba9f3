"""A directory with continuous edits, and its view in a mount after each refresh."""

from __future__ import annotations

import json
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from errno import EISDIR, ELOOP, ENOENT, ENOTDIR
from io import BufferedReader
from pathlib import Path
from typing import Any

import edited_trees
import pytest
from conftest import needs
from edited_trees import EditedTree, differences, sealed, seen, unprivileged

from mesh_core import this_host
from mesh_fs import CacheOptions, HostStatus, MountHandler, MountOptions, remotemount

BACKENDS = ["fuse", "unpack"]
GAMES = 15
STEPS = 10
#: Number of edits of one file, each of which creates a version, and its approximate maximum length.
VERSIONS = 40
FILE_LEN_MAX = 800_000
LIMIT_S = 60.0
#: Expected errors of a reader: an entry was removed, or replaced by another kind.
EXPECTED = {os.strerror(number) for number in (ENOENT, ENOTDIR, EISDIR, ELOOP)}


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """A directory for random edits."""
    root = tmp_path / "edited"
    root.mkdir()
    return root


@contextmanager
def reader(root: Path) -> Iterator[dict[str, Any]]:
    """Run a process that reads continuously; its observations are available after the block."""
    words = [sys.executable, edited_trees.__file__, os.fspath(root), "1"]
    results: dict[str, Any] = {}
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reads\n"
            yield results
            results.update(json.loads(process.communicate("enough")[0]))
        finally:
            process.kill()


def play(handler: MountHandler, root: Path, mountpoint: Path, seed: int, backend: str) -> None:
    """Check after every few edits and a refresh that the mount is equal to the directory."""
    tree = EditedTree(os.fsencode(root), seed)
    tree.begin()
    for step in range(STEPS + 1):
        if step % 3 == 0 or step == STEPS:
            handler.refresh()
            expected = seen(os.fsencode(root))
            if backend == "unpack":
                expected = unprivileged(expected)
            wrong = differences(expected, seen(os.fsencode(mountpoint)))
            steps = "\n".join(tree.steps)
            assert not wrong, f"{wrong}\nin the game {seed}, after\n{steps}"
        tree.step()
    tree.steps.clear()


def play_all(
    seeds: range, edited: Path, mountpoint: Path, cache: CacheOptions, backend: str
) -> dict[str, Any]:
    """Run rounds of edits with a concurrent reader; return the observations of the reader."""
    needs(backend)
    options = MountOptions(backend=backend)
    with (
        remotemount(this_host(), edited, mountpoint, cache=cache, mount=options) as handler,
        reader(mountpoint) as results,
    ):
        for seed in seeds:
            play(handler, edited, mountpoint, seed, backend)
        handler.refresh()
        assert handler.refresh() is False
    return results


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_edited_tree_is_visible_and_no_read_is_torn(
    edited: Path, mountpoint: Path, cache: CacheOptions, backend: str
) -> None:
    results = play_all(range(GAMES), edited, mountpoint, cache, backend)
    assert results["reads"] > 0
    assert results["torn"] == []
    assert results["errors"].keys() <= EXPECTED


@pytest.mark.usefixtures("needs_mounts")
def test_no_read_mixes_two_versions_during_a_refresh(
    edited: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    chance = random.Random(1)

    def write(version: int) -> None:
        for number in range(200):
            body = b"%d " % version * chance.randrange(1, 600)
            (edited / str(number)).write_bytes(sealed(body))

    write(0)
    with (
        remotemount(this_host(), edited, mountpoint, cache=cache) as handler,
        reader(mountpoint) as results,
        reader(mountpoint) as other_results,
    ):
        for version in range(1, 25):
            write(version)
            assert handler.refresh() is True
            (status,) = handler.wait(LIMIT_S).values()
            assert isinstance(status, HostStatus)
            assert status.problem is None, f"in version {version}"
    assert [*results["torn"], *other_results["torn"]] == []
    assert {**results["errors"], **other_results["errors"]} == {}
    assert results["reads"] > 1000


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_open_file_keeps_its_content_after_a_refresh(
    edited: Path, mountpoint: Path, cache: CacheOptions, backend: str
) -> None:
    before, after = os.urandom(50_000), os.urandom(60_000)
    (edited / "file").write_bytes(before)
    needs(backend)
    options = MountOptions(backend=backend)
    with remotemount(this_host(), edited, mountpoint, cache=cache, mount=options) as handler:
        handler.wait(LIMIT_S)
        with (
            (mountpoint / "file").open("rb", buffering=0) as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        ):
            assert file.read(100) == before[:100]
            (edited / "file").write_bytes(after)
            assert handler.refresh() is True
            assert file.read() == before[100:]
            assert os.fstat(file.fileno()).st_size == len(before)
            assert mapped[:] == before
            assert (mountpoint / "file").read_bytes() == after


def write_anywhere(path: Path, expected: bytearray, chance: random.Random) -> None:
    """Write, truncate or extend a file at random, and its expected content as well."""
    place = chance.randrange(FILE_LEN_MAX)
    # A write beyond the end creates a hole.
    expected.extend(bytes(max(0, place - len(expected))))
    with path.open("r+b") as file:
        if chance.random() < 0.3:
            file.truncate(place)
            del expected[place:]
        else:
            body = chance.randbytes(chance.choice([1, 100, 5000, 150_000]))
            file.seek(place)
            file.write(body)
            expected[place : place + len(body)] = body


def read_anywhere(file: BufferedReader, content: bytes, chance: random.Random) -> None:
    """Read a file at random positions with two methods, and compare the expected content."""
    assert os.fstat(file.fileno()).st_size == len(content)
    for _ in range(20):
        start, count = chance.randrange(FILE_LEN_MAX), chance.choice([1, 4096, 5000, 300_000])
        wanted = content[start : start + count]
        assert os.pread(file.fileno(), count, start) == wanted
        if content:
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                assert mapped[start : start + count] == wanted


@pytest.mark.parametrize("seed", [1, 2])
def test_a_read_at_any_offset_returns_the_version_that_was_opened(
    edited: Path, mountpoint: Path, cache: CacheOptions, seed: int
) -> None:
    chance, expected = random.Random(seed), bytearray()
    (edited / "file").touch()
    with remotemount(this_host(), edited, mountpoint, cache=cache) as handler, ExitStack() as files:
        versions: list[tuple[BufferedReader, bytes]] = []
        for _ in range(VERSIONS):
            write_anywhere(edited / "file", expected, chance)
            handler.refresh()
            # Data that was not fetched before a change is lost.
            handler.wait(LIMIT_S)
            opened = files.enter_context((mountpoint / "file").open("rb"))
            versions.append((opened, bytes(expected)))
            for file, content in (versions[-1], chance.choice(versions)):
                read_anywhere(file, content, chance)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", range(100, 1000, 300))
def test_many_edited_trees_are_visible_and_no_read_is_torn(
    edited: Path, mountpoint: Path, cache: CacheOptions, backend: str, first: int
) -> None:
    results = play_all(range(first, first + 300), edited, mountpoint, cache, backend)
    assert results["torn"] == []
    assert results["errors"].keys() <= EXPECTED
