"""The repository from the view of the tools: its root, its packages and their metadata."""

import hashlib
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: All distributions, each after its dependencies. Releases happen in this order.
PACKAGES = ("mesh-core", "mesh-rdma", "mesh-telemetry", "mesh-jobs", "mesh-fs", "mesh-tensor")

_NO_NAMES = "\n__all__: list[str] = []\n"

#: The public modules of a package: for users, for extensions, and for the tests of both.
PUBLIC_MODULES = ("__init__.py", "spi.py", "testing.py")

#: The public modules that a single package has in addition, as ARCHITECTURE.md explains.
ADDITIONAL_PUBLIC_MODULES = {
    "mesh-core": (
        "case.py",
        "compat.py",
        "recording.py",
        "replay.py",
        "schedules.py",
        "services.py",
    ),
    "mesh-tensor": ("training.py",),
}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def cache_folder() -> Path:
    """Return the folder for artifacts that are slow to build.

    It is outside the repository, so that other clones can share it.
    """
    if explicit := os.environ.get("MESH_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mesh-dev"


def clone_folder() -> Path:
    """Return the folder in the cache that is private to this clone."""
    return cache_folder() / "clones" / hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Package:
    """A distribution: a folder under `packages/`."""

    name: str
    root: Path = ROOT

    @property
    def folder(self) -> Path:
        """The folder of the package."""
        return self.root / "packages" / self.name

    @property
    def distribution(self) -> str:
        """The name under which it is published and installed: `torchmesh-core` for `mesh-core`."""
        name: str = self.project["name"]
        return name

    @property
    def import_name(self) -> str:
        """The module that users import: `mesh_core` for `mesh-core`."""
        return self.name.replace("-", "_")

    @property
    def source(self) -> Path:
        """The folder of that module."""
        return self.folder / "src" / self.import_name

    @property
    def offers_names(self) -> bool:
        """Whether any of its public modules exports names."""
        texts = [(self.source / name).read_text("utf-8") for name in self.public_files]
        return any(_NO_NAMES not in text for text in texts)

    @property
    def public_files(self) -> list[str]:
        """The files of its public modules: the package, and its other public modules."""
        names = PUBLIC_MODULES + ADDITIONAL_PUBLIC_MODULES.get(self.name, ())
        return [name for name in names if (self.source / name).is_file()]

    @property
    def public_modules(self) -> list[str]:
        """The import names of its public modules."""
        names = [name.removesuffix(".py") for name in self.public_files]
        return [
            self.import_name if name == "__init__" else f"{self.import_name}.{name}"
            for name in names
        ]

    @property
    def project(self) -> dict[str, Any]:
        """The `[project]` table of its pyproject.toml."""
        table: dict[str, Any] = read_toml(self.folder / "pyproject.toml")["project"]
        return table

    @property
    def version_file(self) -> Path:
        """The only file with its version: Cargo.toml of its extension, or pyproject.toml."""
        if "version" in self.project:
            return self.folder / "pyproject.toml"
        return self.folder / "crates" / f"{self.name}-py" / "Cargo.toml"

    @property
    def version(self) -> str:
        """The version of the next wheel."""
        tables = read_toml(self.version_file)
        version: str = (tables.get("project") or tables["package"])["version"]
        return version

    @property
    def requirements(self) -> list[str]:
        """Its declared dependencies, without extras."""
        lines: list[str] = self.project.get("dependencies", [])
        return lines

    @property
    def siblings(self) -> list[str]:
        """The packages of this repository among its dependencies."""
        required = {requirement_name(line) for line in self.requirements}
        return [one.name for one in packages(self.root) if one.distribution in required]


def requirement_name(line: str) -> str:
    """Return the distribution that a requirement names: `torch` for `torch>=2.6`."""
    return re.split(r"[^A-Za-z0-9._-]", line.strip(), maxsplit=1)[0]


def packages(root: Path = ROOT) -> list[Package]:
    """Return all packages, each after its dependencies."""
    return [Package(name, root) for name in PACKAGES]


def package(name: str, root: Path = ROOT) -> Package:
    """Return a package.

    Raises:
        LookupError: No package has this name.
    """
    if name not in PACKAGES:
        raise LookupError(f"no package {name!r}: there are {', '.join(PACKAGES)}")
    return Package(name, root)
