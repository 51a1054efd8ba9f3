"""The copy in which cargo builds has the content of a clone, and the times of the last changes."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from tools.cargo_tree import cargo_tree

LONG_AGO = (1_000_000_000, 1_000_000_000)
CRATE = "packages/mesh-core/crates/mesh-wire"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MESH_CACHE", str(folder))
    return folder


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with one crate."""
    root = tmp_path / "clone"
    write(root / "Cargo.toml", "[workspace]")
    write(root / CRATE / "src" / "lib.rs", "//! One.")
    write(root / CRATE / "src" / "frame.rs", "//! Two.")
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_files_keep_their_modification_time_until_their_content_changes(clone: Path) -> None:
    with cargo_tree(clone) as tree:
        for name in ("lib.rs", "frame.rs"):
            os.utime(tree / CRATE / "src" / name, LONG_AGO)
    other = clone.with_name("other")
    shutil.copytree(clone, other, copy_function=shutil.copyfile)
    write(other / CRATE / "src" / "frame.rs", "//! Other.")
    with cargo_tree(other) as tree:
        same, changed = tree / CRATE / "src" / "lib.rs", tree / CRATE / "src" / "frame.rs"
        assert same.stat().st_mtime == LONG_AGO[0]
        assert changed.stat().st_mtime > LONG_AGO[0]
        assert changed.read_text() == "//! Other."


def test_crates_that_the_clone_does_not_have_are_deleted_with_their_folder(clone: Path) -> None:
    write(clone / "crates" / "mesh-tls" / "src" / "lib.rs", "//! Three.")
    with cargo_tree(clone):
        pass
    shutil.rmtree(clone / "crates")
    with cargo_tree(clone) as tree:
        assert not (tree / "crates").exists()


def test_a_folder_and_a_file_replace_each_other(clone: Path) -> None:
    with cargo_tree(clone):
        pass
    module = clone / CRATE / "src" / "frame.rs"
    module.unlink()
    write(module / "mod.rs", "//! Three.")
    with cargo_tree(clone) as tree:
        assert (tree / module.relative_to(clone) / "mod.rs").read_text() == "//! Three."
    shutil.rmtree(module)
    write(module, "//! Two.")
    with cargo_tree(clone) as tree:
        assert (tree / module.relative_to(clone)).read_text() == "//! Two."


def test_another_clone_waits_until_the_copy_is_free(clone: Path) -> None:
    other = clone.with_name("other")
    shutil.copytree(clone, other)
    write(other / "Cargo.toml", "[workspace] # other")
    done: list[str] = []

    def build() -> None:
        with cargo_tree(other) as tree:
            done.append((tree / "Cargo.toml").read_text())

    waiting = threading.Thread(target=build)
    with cargo_tree(clone) as tree, cargo_tree(clone):
        waiting.start()
        waiting.join(0.2)
        assert (tree / "Cargo.toml").read_text() == "[workspace]"
        assert done == []
    waiting.join(30)
    assert done == ["[workspace] # other"]
