"""The image of images/Containerfile, built without an engine and without a registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tools.workspace import ROOT

LIMIT_S = 60.0
BASE, IMAGE = "localhost/mesh-test-base", "localhost/mesh-test"
#: The Debian release of the base image that the file names, and its Python.
SUITE, PYTHON = "bookworm", "3.11"
#: Files that the slim images of Debian omit.
LEFT_OUT = ("doc", "groff", "info", "linda", "lintian", "locale", "man")


class Image:
    """The built image, and a container of it.

    Args:
        folder: Where buildah keeps images and containers.
    """

    def __init__(self, folder: Path) -> None:
        self._buildah = [
            "buildah",
            f"--root={folder / 'storage'}",
            f"--runroot={folder / 'run'}",
            "--storage-driver=vfs",
        ]
        self.container = ""

    def buildah(self, *words: str) -> str:
        """Run a command of buildah and return its output."""
        run = subprocess.run([*self._buildah, *words], stdout=subprocess.PIPE, text=True)
        assert run.returncode == 0, f"{words} ended with {run.returncode}"
        return run.stdout.strip()

    @property
    def config(self) -> dict[str, object]:
        """The configuration of containers of the image."""
        whole = json.loads(self.buildah("inspect", "--type=image", IMAGE))
        found: dict[str, object] = whole["Docker"]["config"]
        return found

    def size(self, name: str) -> int:
        """Return the size of all files of an image, in bytes."""
        container = self.buildah("from", "--pull-never", name)
        root = self.buildah("mount", container)
        used = subprocess.check_output(["du", "-sxb", root], text=True)
        self.buildah("rm", container)
        return int(used.split()[0])

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command in the container, as the user of the image."""
        return subprocess.Popen(self._command(words), stdout=subprocess.PIPE, text=True)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as the user of the image."""
        command = self._command(words)
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)

    def _command(self, words: Sequence[str]) -> list[str]:
        return [*self._buildah, "run", "--isolation=chroot", self.container, "--", *words]


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image, built from the wheels in `MESH_WHEELS` on a Debian base."""
    folder = tmp_path_factory.mktemp("images")
    built = Image(folder)
    base = folder / "base.tar"
    slim = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
    bootstrap = ["mmdebstrap", "--quiet", "--variant=minbase", *slim]
    subprocess.run([*bootstrap, SUITE, str(base)], check=True)
    scratch = built.buildah("from", "scratch")
    built.buildah("add", scratch, str(base), "/")
    built.buildah("commit", "--quiet", "--rm", scratch, BASE)
    context = folder / "context"
    _download(context)
    options = ["--format=docker", "--isolation=chroot", f"--file={ROOT / 'images/Containerfile'}"]
    options += [f"--build-arg=BASE={BASE}", "--build-arg=PIP_NO_INDEX=1", f"--tag={IMAGE}"]
    built.buildah("build", "--quiet", "--pull-never", *options, str(context))
    built.container = built.buildah("from", "--pull-never", IMAGE)
    yield built
    built.buildah("rm", "--all")


def _download(context: Path) -> None:
    """Collect all wheels, so that the build needs no package index."""
    own = os.environ["MESH_WHEELS"].split(os.pathsep)
    jobs = next(one for one in own if "_jobs-" in one)
    links = [f"--find-links={Path(one).parent}" for one in own]
    command = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={context}"]
    command += ["--only-binary=:all:", f"--python-version={PYTHON}"]
    subprocess.run([*command, *links, f"{jobs}[control]"], check=True)
