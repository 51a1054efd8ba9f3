"""Lists the components of an installed package, in the format CycloneDX.

The crates in an extension module are listed in its wheel already, by maturin. This list has the
Python packages that an installer adds, in the versions of the day of the release.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.artifacts import Artifacts
from tools.steps import run_quietly


def path(built: Artifacts) -> Path:
    """Return the path of the list of a package."""
    return built.wheel.parent / f"{built.package.distribution}-{built.package.version}.cdx.json"


def write(built: Artifacts, links: Sequence[str]) -> None:
    """Install a package into a new environment, and write the list of all installed packages.

    Args:
        built: The files of the package.
        links: The options of uv with the folders of the packages that it needs.

    Raises:
        subprocess.CalledProcessError: The package cannot be installed.
    """
    uv = [sys.executable, "-m", "uv"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "environment")
        subprocess.run([*uv, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
        target = ["-p", str(folder), "--reinstall", *links, str(built.wheel)]
        run_quietly([*uv, "pip", "install", *target])
        listing = [sys.executable, "-m", "cyclonedx_py", "environment", str(folder)]
        listing += ["--output-reproducible", "--output-file", str(path(built))]
        run_quietly(listing)
