"""The `ARCHITECTURE.md` of each package names every crate and every sub-package."""

from pathlib import Path

import pytest

from tools.workspace import ROOT

PACKAGES = sorted((ROOT / "packages").iterdir())


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_component_is_named(package: Path) -> None:
    page = (package / "ARCHITECTURE.md").read_text(encoding="utf-8")
    crates = [path.parent for path in package.glob("crates/*/Cargo.toml")]
    folders = [path.parent for path in package.glob("src/*/*/__init__.py")]
    missing = [path.name for path in (*crates, *folders) if path.name not in page]
    assert missing == []
