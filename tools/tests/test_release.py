"""Releasing a package: version, changelog and notes change together, or not at all."""

import datetime
from pathlib import Path

import pytest

from tools.release import (
    Note,
    ReleaseError,
    changelog_section,
    insert_section,
    read_notes,
    release,
    set_version,
)
from tools.release import parse_version as version
from tools.workspace import Package

DAY = datetime.date(2026, 11, 21)


@pytest.fixture
def rdma(tmp_path: Path) -> Package:
    """A pure Python package at 0.1.0 with one note."""
    package = Package("mesh-rdma", tmp_path)
    (package.folder / "changes").mkdir(parents=True)
    (package.folder / "pyproject.toml").write_text(
        '[project]\nname = "mesh-rdma"\nversion = "0.1.0"\n'
    )
    (package.folder / "CHANGELOG.md").write_text("# Changes of mesh-rdma\n\nNotes are elsewhere.\n")
    (package.folder / "changes" / "buffers.added.md").write_text("Buffers over\nCPU memory.\n")
    return package


def test_release_moves_the_notes_into_the_changelog(rdma: Package) -> None:
    release(rdma, "0.2.0", DAY)
    assert rdma.version == "0.2.0"
    assert list((rdma.folder / "changes").iterdir()) == []
    assert (rdma.folder / "CHANGELOG.md").read_text() == (
        "# Changes of mesh-rdma\n\nNotes are elsewhere.\n\n"
        "## 0.2.0 (2026-11-21)\n\n### Added\n\n- Buffers over CPU memory.\n"
    )


def test_older_version_is_refused_and_nothing_changes(rdma: Package) -> None:
    before = (rdma.folder / "CHANGELOG.md").read_text()
    with pytest.raises(ReleaseError, match="older than"):
        release(rdma, "0.0.9", DAY)
    assert (rdma.folder / "CHANGELOG.md").read_text() == before
    assert len(list((rdma.folder / "changes").iterdir())) == 1


def test_package_without_notes_is_not_released(rdma: Package) -> None:
    (rdma.folder / "changes" / "buffers.added.md").unlink()
    with pytest.raises(ReleaseError, match="no notes"):
        release(rdma, "0.2.0", DAY)
    assert rdma.version == "0.1.0"


def test_the_error_names_a_note_of_unknown_kind(rdma: Package) -> None:
    (rdma.folder / "changes" / "x.news.md").write_text("News.\n")
    with pytest.raises(ReleaseError, match=r"x\.news\.md"):
        read_notes(rdma.folder / "changes")


def test_the_newest_release_is_listed_first() -> None:
    changelog = "# Changes\n\n## 0.1.0 (2026-01-01)\n\n- Old.\n"
    section = changelog_section("0.2.0", DAY, [Note("fixed", "New.")])
    text = insert_section(changelog, section)
    assert text.index("## 0.2.0") < text.index("## 0.1.0")
    assert text.startswith("# Changes\n\n## 0.2.0 (2026-11-21)\n\n### Fixed\n\n- New.\n\n## 0.1.0")


def test_versions_sort_as_users_expect() -> None:
    ordered = ["0.1.0", "0.2.0a1", "0.2.0b1", "0.2.0rc1", "0.2.0rc2", "0.2.0", "0.10.0"]
    assert sorted(ordered, key=version) == ordered


def test_manifest_with_two_versions_is_refused() -> None:
    with pytest.raises(ReleaseError, match="2 lines"):
        set_version('version = "1.0.0"\nversion = "2.0.0"\n', "3.0.0")
