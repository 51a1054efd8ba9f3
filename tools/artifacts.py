"""Builds the files of a release: a source distribution of each package, and a wheel from it.

The wheel is built from the source distribution and not from the clone, so a file that is missing in
the source distribution is noticed here.
"""

import email
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools import toolbox
from tools.steps import run_quietly, step
from tools.workspace import Package

#: Fields of the metadata that an index shows to users.
_FIELDS = (
    "Summary",
    "Keywords",
    "Author",
    "License-Expression",
    "License-File",
    "Requires-Python",
    "Classifier",
    "Description-Content-Type",
)
_LICENCE = "LICENSE"
_WHEEL_BYTES_MAX = 10_000_000


@dataclass(frozen=True)
class Artifacts:
    """The files of a package that are published."""

    package: Package
    sdist: Path
    wheel: Path

    @property
    def files(self) -> list[Path]:
        """The files, the source distribution first."""
        return [self.sdist, self.wheel]


def build(package: Package, folder: Path) -> Artifacts:
    """Build the source distribution of a package, and a wheel from it.

    Args:
        package: The package to build.
        folder: The folder for the files, which may contain files of other packages.

    Raises:
        subprocess.CalledProcessError: The build failed; its output went to stderr.
    """
    own = folder / package.name
    shutil.rmtree(own, ignore_errors=True)
    python = toolbox.ensure()
    command = [toolbox.program("uv"), "build", "--no-build-isolation", "--no-create-gitignore"]
    command += ["--python", str(python), "--out-dir", str(own), str(package.folder)]
    with step(
        f"building {package.distribution}",
        "compiles Rust: about 1 minute" if is_native(package) else "",
    ):
        run_quietly(command, {**os.environ, **toolbox.environment()})
    (sdist,), (wheel,) = own.glob("*.tar.gz"), own.glob("*.whl")
    return Artifacts(package, sdist, wheel)


def is_native(package: Package) -> bool:
    """Return whether a package has an extension module, so that its wheels are per platform."""
    return (package.folder / "crates").is_dir()


def problems(built: Artifacts) -> Iterator[str]:
    """Yield the defects of the files of a package that its tests do not detect."""
    licence = (built.package.root / _LICENCE).read_bytes()
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        fields = email.message_from_bytes(archive.read(metadata))
        licences = [archive.read(one) for one in names if one.endswith(f"licenses/{_LICENCE}")]
    if licences != [licence]:
        yield f"{built.wheel.name}: the text of the licence is missing, or another one"
    if fields["Name"] != built.package.distribution or fields["Version"] != built.package.version:
        yield f"{built.wheel.name}: it is {fields['Name']} {fields['Version']}"
    yield from (f"{built.wheel.name}: no {name}" for name in _FIELDS if not fields[name])
    if is_native(built.package) and not any(".dist-info/sboms/" in name for name in names):
        yield f"{built.wheel.name}: it does not list the crates that it contains"
    if unexpected := [name for name in names if "/tests/" in name or name.startswith("tests/")]:
        yield f"{built.wheel.name}: it contains tests: {unexpected[0]}"
    if built.wheel.stat().st_size > _WHEEL_BYTES_MAX:
        yield f"{built.wheel.name}: more than {_WHEEL_BYTES_MAX} bytes"
    with tarfile.open(built.sdist) as source:
        if not any(name.count("/") == 1 and name.endswith(_LICENCE) for name in source.getnames()):
            yield f"{built.sdist.name}: the text of the licence is missing"
