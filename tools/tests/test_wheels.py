"""A wheel is rebuilt only if one of its inputs has changed."""

from pathlib import Path

import pytest

from tools.wheels import digest
from tools.workspace import PACKAGES, ROOT, Package, package, packages


@pytest.fixture
def jobs(tmp_path: Path) -> Package:
    """A package with one module."""
    target = Package("mesh-jobs", tmp_path)
    (target.folder / "src" / "mesh_jobs").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "src/mesh_jobs/__init__.py"):
        (target.folder / name).write_text("")
    return target


def test_the_digest_changes_with_the_source(jobs: Package) -> None:
    before = digest(jobs)
    (jobs.source / "__init__.py").write_text("x = 1\n")
    assert digest(jobs) != before


def test_digest_ignores_tests_and_caches(jobs: Package) -> None:
    before = digest(jobs)
    for name in ("tests/test_a.py", "src/mesh_jobs/__pycache__/a.pyc", "src/mesh_jobs/_x.abi3.so"):
        path = jobs.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert digest(jobs) == before


def test_the_digest_changes_when_a_file_is_renamed(jobs: Package) -> None:
    before = digest(jobs)
    (jobs.source / "__init__.py").rename(jobs.source / "spi.py")
    assert digest(jobs) != before


def test_the_digest_includes_shared_crates_only_for_a_package_with_rust(jobs: Package) -> None:
    shared = jobs.root / "crates" / "mesh-x" / "src" / "lib.rs"
    shared.parent.mkdir(parents=True)
    shared.write_text("")
    before = digest(jobs)
    shared.write_text("//! Changed.")
    assert digest(jobs) == before, "it has no Rust"
    (jobs.folder / "crates").mkdir()
    before = digest(jobs)
    shared.write_text("")
    assert digest(jobs) != before


def test_packages_are_listed_in_release_order() -> None:
    for one in packages():
        assert all(PACKAGES.index(name) < PACKAGES.index(one.name) for name in one.siblings)


def test_the_error_for_an_unknown_package_lists_the_known_ones() -> None:
    with pytest.raises(LookupError, match="mesh-core, mesh-rdma"):
        package("mesh-tea")


def test_every_package_folder_is_listed() -> None:
    assert sorted(path.name for path in (ROOT / "packages").iterdir()) == sorted(PACKAGES)
