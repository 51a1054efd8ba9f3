"""The tree as the tools see it: where it is, which packages it holds, what each declares."""

import hashlib
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: Every distribution, each after those it may depend on. Releases go in this order.
PACKAGES = ("mesh-core", "mesh-rdma", "mesh-telemetry", "mesh-jobs", "mesh-fs", "mesh-tensor")

#: The public modules of a package: for its users, for those who build on it, for their tests.
DOOR_FILES = ("__init__.py", "spi.py", "testing.py")


def read_toml(path: Path) -> dict[str, Any]:
    """Reads one TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def cache_folder() -> Path:
    """Returns the folder for what is slow to make again.

    It lies outside the tree, so that a second clone starts warm.
    """
    if explicit := os.environ.get("MESH_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mesh-dev"


def clone_folder() -> Path:
    """Returns the part of the cache that belongs to this clone alone."""
    return cache_folder() / "clones" / hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Package:
    """One distribution: a folder under `packages/`."""

    name: str
    root: Path = ROOT

    @property
    def folder(self) -> Path:
        """Where the package lives."""
        return self.root / "packages" / self.name

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
        """Whether any of its doors has something behind it."""
        doors = (self.source / name for name in DOOR_FILES)
        return any("\n__all__: list[str] = []\n" not in door.read_text("utf-8") for door in doors)

    @property
    def project(self) -> dict[str, Any]:
        """The `[project]` table of its pyproject.toml."""
        table: dict[str, Any] = read_toml(self.folder / "pyproject.toml")["project"]
        return table

    @property
    def version_file(self) -> Path:
        """The one file that states its version: the extension crate's, or pyproject.toml."""
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
        """What it declares to need when nothing extra is asked for."""
        lines: list[str] = self.project.get("dependencies", [])
        return lines

    @property
    def siblings(self) -> list[str]:
        """The packages of this tree among its requirements."""
        return [name for line in self.requirements if (name := requirement_name(line)) in PACKAGES]


def requirement_name(line: str) -> str:
    """Returns the distribution that a requirement names: `torch` for `torch>=2.6`."""
    return re.split(r"[^A-Za-z0-9._-]", line.strip(), maxsplit=1)[0]


def packages(root: Path = ROOT) -> list[Package]:
    """Returns all packages, each after those it depends on."""
    return [Package(name, root) for name in PACKAGES]


def package(name: str, root: Path = ROOT) -> Package:
    """Returns one package.

    Raises:
        LookupError: There is no package of that name.
    """
    if name not in PACKAGES:
        raise LookupError(f"no package {name!r}: there are {', '.join(PACKAGES)}")
    return Package(name, root)
