"""Builds, checks and publishes the files of a release: the nox session `release`.

Nothing is published before all files of all packages are built, checked, installed and tried.

    nox -s release                     build, check and try all packages, into dist/
    nox -s release -- mesh-fs          one package, and its dependencies
    nox -s release -- --index local    and publish them to an index on this machine
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import artifacts, sbom
from tools.artifacts import Artifacts
from tools.local_index import LocalIndex, local_index
from tools.steps import run_quietly, step
from tools.workspace import PACKAGES, ROOT, package

#: The only index that this command publishes to. The public one requires an identity, which the
#: workflow `release.yml` has.
LOCAL = "local"

DIST = ROOT / "dist"

_FIRST_PROGRAM = "tests/release/test_first_program.py::test_first_program"


class Unpublishable(Exception):
    """Files of a release are invalid; nothing was published."""


@dataclass(frozen=True)
class Line:
    """A published file in the report."""

    name: str
    size: int
    sha256: str

    def __str__(self) -> str:
        """Return the line of the report."""
        return f"{self.size:>10,}  {self.sha256[:16]}  {self.name}"


def prepare(names: Sequence[str], folder: Path = DIST) -> list[Artifacts]:
    """Build, check and try packages, and return their files.

    Args:
        names: The packages. Their dependencies are prepared, too.
        folder: The folder for the files.

    Raises:
        Unpublishable: A file is incomplete, or the first program with a package does not run.
        subprocess.CalledProcessError: A build failed; its output went to stderr.
    """
    needed = {one for name in names for one in (name, *package(name).siblings)}
    built = [artifacts.build(package(name), folder) for name in PACKAGES if name in needed]
    files = [file for one in built for file in one.files]
    found = [problem for one in built for problem in artifacts.problems(one)]
    if found:
        raise Unpublishable("\n".join(found))
    with step("checking the descriptions"):
        run_quietly([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)])
    links = [f"--find-links={one.wheel.parent}" for one in built]
    _try_out(built, [*links, "--reinstall"], "from the files")
    for one in built:
        sbom.write(one, links)
    return built


def publish(built: Sequence[Artifacts], index: LocalIndex) -> None:
    """Upload files to an index, and install each package from there.

    Raises:
        Unpublishable: The first program with an installed package does not run.
        subprocess.CalledProcessError: The index refused a file.
    """
    with step(f"publishing to {index.address}"):
        index.upload([file for one in built for file in one.files])
    _try_out(built, [f"--extra-index-url={index.simple}", "--refresh"], "from the index")


def report(built: Sequence[Artifacts]) -> list[Line]:
    """Return a line for each file."""
    files = [file for one in built for file in (*one.files, sbom.path(one))]
    return [
        Line(file.name, file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
        for file in files
    ]


def _try_out(built: Sequence[Artifacts], options: Sequence[str], where: str) -> None:
    """Install each package in a new environment, and run the first program with it."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly"]
    command += [f"{_FIRST_PROGRAM}[{one.package.name}]" for one in built]
    env = {**os.environ, "MESH_INSTALL_OPTIONS": " ".join(options)}
    with step(f"installing and trying each package {where}", "about 2 minutes"):
        try:
            run_quietly(command, env)
        except subprocess.CalledProcessError as error:
            raise Unpublishable(f"a first program did not run {where}") from error


def main() -> int:
    """Prepare a release, and publish it if requested."""
    parser = argparse.ArgumentParser(prog="nox -s release --", description="Prepare a release.")
    parser.add_argument("names", nargs="*", metavar="PACKAGE", help="default: all packages")
    parser.add_argument("--index", choices=[LOCAL], help="publish to an index on this machine")
    parser.add_argument("--store", type=Path, help="folder of that index; default: a temporary one")
    options = parser.parse_args()
    try:
        built = prepare(options.names or PACKAGES)
        if options.index:
            with (
                tempfile.TemporaryDirectory() as temporary,
                local_index(options.store or Path(temporary)) as index,
            ):
                publish(built, index)
    except Unpublishable as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(map(str, report(built))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
