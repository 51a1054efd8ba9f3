"""Prepares the release of one package: `python3 -m tools.release mesh-core 0.2.0`.

Sets the version, turns the notes in `changes/` into a section of the changelog, commits and tags.
Nothing leaves the machine: publishing means pushing the tag.
"""

import argparse
import datetime
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.workspace import PACKAGES, Package, package

#: The kinds of notes, in the order of the changelog: `changes/<anything>.<kind>.md`.
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed", "removed": "Removed"}

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")
_VERSION_LINE = re.compile(r'^version = "[^"]*"$', re.MULTILINE)
_STAGES = {"a": 0, "b": 1, "rc": 2, None: 3}


class ReleaseError(Exception):
    """The release cannot be made; nothing was changed."""


@dataclass(frozen=True)
class Note:
    """One user-visible change."""

    kind: str
    text: str


def parse_version(text: str) -> tuple[int, int, int, int, int]:
    """Convert a version into a sortable tuple.

    Raises:
        ReleaseError: The version does not have the form `0.2.0` or `0.2.0rc1`.
    """
    found = _VERSION.fullmatch(text)
    if not found:
        raise ReleaseError(f"version {text!r}: write it like 0.2.0 or 0.2.0rc1")
    major, minor, patch, stage, number = found.groups()
    return int(major), int(minor), int(patch), _STAGES[stage], int(number or 0)


def read_notes(folder: Path) -> list[Note]:
    """Read the notes of the next release, in the order of the changelog.

    Raises:
        ReleaseError: The name of a file contains no kind, or no notes exist.
    """
    notes = []
    for path in sorted(folder.glob("*.md")):
        kind = path.name.split(".")[-2]
        if kind not in KINDS:
            raise ReleaseError(f"note {path.name}: name it <subject>.<{'|'.join(KINDS)}>.md")
        notes.append(Note(kind, " ".join(path.read_text(encoding="utf-8").split())))
    if not notes:
        raise ReleaseError("no notes in changes/: a package that did not change is not released")
    order = list(KINDS)
    return sorted(notes, key=lambda note: order.index(note.kind))


def changelog_section(version: str, date: datetime.date, notes: list[Note]) -> str:
    """Return the changelog section of one release."""
    lines = [f"## {version} ({date.isoformat()})"]
    for kind, title in KINDS.items():
        texts = [note.text for note in notes if note.kind == kind]
        if texts:
            lines += ["", f"### {title}", "", *(f"- {text}" for text in texts)]
    return "\n".join(lines) + "\n"


def insert_section(changelog: str, section: str) -> str:
    """Insert a section above the sections of earlier releases."""
    head, separator, earlier = changelog.partition("\n## ")
    parts = [head.rstrip(), section.rstrip()]
    if separator:
        parts.append(f"## {earlier.rstrip()}")
    return "\n\n".join(parts) + "\n"


def set_version(manifest: str, version: str) -> str:
    """Set the version in the text of a manifest.

    Raises:
        ReleaseError: The manifest does not state its version exactly once.
    """
    changed, count = _VERSION_LINE.subn(f'version = "{version}"', manifest)
    if count != 1:
        raise ReleaseError(f"{count} lines with a version in the manifest: there must be one")
    return changed


def release(target: Package, version: str, date: datetime.date) -> list[Path]:
    """Write version and changelog, delete the notes, and return the changed files.

    Raises:
        ReleaseError: The version is older than the current one, or no notes exist.
    """
    if parse_version(version) < parse_version(target.version):
        raise ReleaseError(f"{version} is older than {target.version}: choose a newer one")
    notes_folder, changelog = target.folder / "changes", target.folder / "CHANGELOG.md"
    section = changelog_section(version, date, read_notes(notes_folder))
    manifest = target.version_file
    manifest.write_text(set_version(manifest.read_text("utf-8"), version), "utf-8")
    changelog.write_text(insert_section(changelog.read_text("utf-8"), section), "utf-8")
    notes = list(notes_folder.glob("*.md"))
    for note in notes:
        note.unlink()
    return [manifest, changelog, *notes]


def main() -> int:
    """Make the release that the command line requests, from a clean checkout."""
    parser = argparse.ArgumentParser(description="Prepare the release of one package.")
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("version")
    options = parser.parse_args()
    target = package(options.package)
    tag = f"{target.name}-v{options.version}"
    try:
        if _git(target.root, "status", "--porcelain"):
            raise ReleaseError("the tree has changes: commit or stash them first")
        if _git(target.root, "tag", "--list", tag):
            raise ReleaseError(f"tag {tag} exists: choose a newer version")
        files = release(target, options.version, datetime.datetime.now(datetime.UTC).date())
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    if target.version_file.name == "Cargo.toml":
        update = ["cargo", "update", "--workspace", "--offline", "--quiet"]
        subprocess.run(update, cwd=target.root, check=True)
        files.append(target.root / "Cargo.lock")
    _git(target.root, "add", "--all", "--", *map(str, files))
    _git(target.root, "commit", "--quiet", "--message", f"Release {target.name} {options.version}")
    _git(target.root, "tag", "--annotate", tag, "--message", f"{target.name} {options.version}")
    print(f"committed and tagged {tag}: push both to publish")
    return 0


def _git(root: Path, *args: str) -> str:
    run = subprocess.run(["git", *args], cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
