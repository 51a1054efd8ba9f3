"""The guide is followed literally: each block in order, from the namespace to its deletion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh_core.testing import wait_until
from tests.docs.markdown import Block, Document
from tests.jobs.kube.cluster import PATIENCE_S, Cluster
from tests.jobs.kube.kubectl import environment
from tests.programs import missing_line
from tools.workspace import ROOT

GUIDE = Document(ROOT / "docs/guides/kubernetes.md")

#: The first line of a file.
NAME = re.compile(r"# ([a-z]+\.(?:py|yaml))")

#: A command that runs in the background and writes to a file.
BACKGROUND = re.compile(r"(?P<command>.+ > (?P<file>\S+)) &")

_LIMIT_S = 2 * PATIENCE_S


@pytest.fixture
def own_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster for the names of the guide, whose pods have this Python as their `python`."""
    if Cluster.given(tmp_path) is not None:
        pytest.skip("the guide drains a node and uses fixed names")
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = Cluster.started(folder)
    yield cluster
    cluster.end()


class Reader:
    """A reader of the guide, who runs its commands in a folder.

    Args:
        folder: The folder.
        env: The environment of the commands.
    """

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._env = env
        self._background: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, command: str) -> str:
        """Run a command and return its output.

        Raises:
            AssertionError: The command fails.
        """
        if found := BACKGROUND.fullmatch(command):
            self._begin(found["command"], self._folder / found["file"])
            return ""
        for name, process in self._background.items():
            if name in command.split():
                # A reader inspects the output when the program has ended.
                assert process.wait(_LIMIT_S) == 0, (self._folder / name).read_text()
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _begin(self, command: str, output: Path) -> None:
        """Start a program, and return when it has printed something."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._background[output.name] = process

        def has_begun() -> bool:
            assert process.poll() in (None, 0), f"{command} failed"
            return output.exists() and output.stat().st_size > 0

        wait_until(has_begun, _LIMIT_S)

    def end(self) -> None:
        """Kill the programs that still run."""
        for process in self._background.values():
            process.kill()
            process.wait()


def follow(block: Block, reader: Reader, folder: Path) -> None:
    """Execute a block: write its file, or run its commands and compare their output."""
    if block.language in ("py", "yaml"):
        named = NAME.fullmatch(block.lines[0])
        assert named, f"line {block.first_line}: a file begins with its name"
        (folder / named[1]).write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        return
    assert block.language == "console", (
        f"line {block.first_line}: nobody can follow a {block.language}"
    )
    for line, command, shown in block.commands():
        if command.startswith("pip "):
            continue  # The package is already installed in the test environment.
        printed = reader.run(command)
        assert missing_line(printed, shown) is None, f"line {line}: {command}\n{printed}"


@pytest.mark.timeout(600)
def test_the_guide_works_literally(own_cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    reader = Reader(folder, environment(own_cluster, folder))
    try:
        for block in GUIDE.blocks():
            follow(block, reader, folder)
    finally:
        reader.end()
    found = own_cluster.core.list_namespace().items
    assert [one.metadata.name for one in found] == ["default"]
    assert not own_cluster.core.list_pod_for_all_namespaces().items


def test_every_file_of_the_guide_is_used() -> None:
    commands = " ".join(command for _, command, _ in GUIDE.commands())
    # The only file that a command reads without naming it.
    commands = commands.replace("kubectl kustomize .", "kubectl kustomize kustomization.yaml")
    texts = [block.lines for block in GUIDE.blocks() if block.language in ("py", "yaml")]
    files = [named[1] for lines in texts if (named := NAME.fullmatch(lines[0]))]
    imported = {
        f"{name}.py"
        for lines in texts
        for name in re.findall(r"from (\w+) import", "\n".join(lines))
    }
    assert [name for name in files if name not in commands and name not in imported] == []
