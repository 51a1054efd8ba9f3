"""Writes tools/constraints.txt: the versions of all packages that any session installs."""

import subprocess

from tools import toolbox
from tools.workspace import ROOT, Package, packages, read_toml, requirement_name

HEADER = "# Written by `python3 -m tools pins`; every session installs within these versions.\n"

#: The bench groups are excluded: their peers require other versions.
UNPINNED_PREFIX = "bench"


def write_pins() -> None:
    """Resolve all groups and packages together, to the newest compatible versions.

    Raises:
        subprocess.CalledProcessError: No compatible versions exist; uv reports the conflict.
    """
    toolbox.ensure()
    groups = read_toml(ROOT / "pyproject.toml")["dependency-groups"]
    command = [toolbox.program("uv"), "pip", "compile", "--quiet", "--universal", "--no-header"]
    command += ["--no-annotate", "--no-emit-index-url", "--python-version", "3.11"]
    command += ["--override", str(toolbox.OVERRIDES)]
    for group in (name for name in groups if not name.startswith(UNPINNED_PREFIX)):
        command += ["--group", f"{ROOT / 'pyproject.toml'}:{group}"]
    wanted = "\n".join(line for one in packages() for line in outside_requirements(one))
    run = subprocess.run(
        [*command, "-"], input=wanted, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = [line for line in run.stdout.splitlines() if not _is_never(line)]
    toolbox.CONSTRAINTS.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")


def outside_requirements(package: Package) -> list[str]:
    """Return the requirements of a package and its extras on other projects."""
    siblings = {one.distribution for one in packages(package.root)}
    extras: dict[str, list[str]] = package.project.get("optional-dependencies", {})
    lines = [*package.requirements, *(line for extra in extras.values() for line in extra)]
    return [line for line in lines if requirement_name(line) not in siblings]


def _is_never(line: str) -> bool:
    return 'sys_platform == "never"' in line or "sys_platform == 'never'" in line
