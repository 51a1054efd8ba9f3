"""A directory of the client, copied to hosts next to the files of others."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from mesh_core import this_host
from mesh_fs import (
    CacheOptions,
    HostSync,
    SnapshotError,
    SnapshotOptions,
    Workspace,
    WorkspaceError,
    sync_workspace,
)

OWN = {".mesh-workspace"}


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """The directory on the host."""
    return tmp_path / "remote"


def opened(source: Path, remote: Path, cache: CacheOptions) -> Workspace:
    return sync_workspace(this_host(), source, remote, cache=cache)


def contents(root: Path) -> dict[str, bytes | str | None]:
    """Return the content of a tree, without the files of the package itself."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name.split("/")[0] in OWN:
            continue
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


def only(workspace: Workspace) -> HostSync:
    status = workspace.result.hosts.item()
    assert isinstance(status, HostSync), status
    return status


def test_files_are_written_as_they_are_on_the_client(
    source: Path, remote: Path, cache: CacheOptions
) -> None:
    (source / "package/module.py").chmod(0o444)
    with opened(source, remote, cache) as workspace:
        assert workspace.directories == (str(remote),)
        assert contents(remote) == contents(source)
        assert workspace.result.written == 5
        assert workspace.result.overwritten == workspace.result.removed == 0
        assert workspace.result.written_bytes > 3_000_000
        assert not only(workspace).is_origin
    assert contents(remote) == contents(source)
    module = (remote / "package/module.py").stat()
    assert module.st_mtime_ns == (source / "package/module.py").stat().st_mtime_ns
    assert stat.S_IMODE(module.st_mode) == 0o644
    assert stat.S_IMODE((remote / "script.sh").stat().st_mode) == 0o755


def test_a_sync_writes_only_the_differences(
    source: Path, remote: Path, cache: CacheOptions
) -> None:
    with opened(source, remote, cache) as workspace:
        inode = (remote / "script.sh").stat().st_ino
        result = workspace.sync()
        assert (result.written, result.removed, result.overwritten) == (0, 0, 0)
        (source / "package/module.py").write_text("ANSWER = 43\n")
        (source / "link").unlink()
        (source / "empty").rmdir()
        (source / "added").mkdir()
        (source / "added/file").write_text("new")
        result = workspace.sync()
        assert (result.written, result.removed, result.overwritten) == (2, 1, 0)
        assert result.written_bytes == len("ANSWER = 43\n") + len("new")
        assert contents(remote) == contents(source)
        assert (remote / "script.sh").stat().st_ino == inode


def test_another_program_can_reuse_the_workspace(
    source: Path, remote: Path, cache: CacheOptions
) -> None:
    opened(source, remote, cache).close()
    (source / "package/module.py").unlink()
    with opened(source, remote, cache) as workspace:
        assert (workspace.result.written, workspace.result.removed) == (0, 1)
        assert only(workspace).fetched_bytes < 100_000
        assert contents(remote) == contents(source)


def test_files_that_the_workspace_does_not_own_are_kept(
    source: Path, remote: Path, cache: CacheOptions
) -> None:
    remote.mkdir()
    (remote / "before").write_text("theirs")
    with opened(source, remote, cache) as workspace:
        (remote / "package/results").write_text("theirs")
        shutil.rmtree(source / "package")
        workspace.sync()
        assert (remote / "before").read_text() == "theirs"
        assert contents(remote / "package") == {"results": b"theirs"}


def test_files_changed_on_the_host_are_overwritten_and_counted(
    source: Path, remote: Path, cache: CacheOptions
) -> None:
    with opened(source, remote, cache) as workspace:
        seen = (remote / "package/module.py").stat()
        (remote / "package/module.py").write_text("ANSWER = 41\n")
        os.utime(remote / "package/module.py", ns=(seen.st_atime_ns, seen.st_mtime_ns))
        (remote / "script.sh").unlink()
        result = workspace.sync()
        assert (result.written, result.overwritten) == (2, 1)
        assert contents(remote) == contents(source)


def test_a_preexisting_file_is_overwritten_and_counted(
    source: Path, remote: Path, cache: CacheOptions
) -> None:
    remote.mkdir()
    (remote / "script.sh").write_text("theirs")
    with opened(source, remote, cache) as workspace:
        assert workspace.result.overwritten == 1
        assert contents(remote) == contents(source)


def test_a_file_and_a_directory_may_replace_each_other(
    source: Path, remote: Path, cache: CacheOptions
) -> None:
    with opened(source, remote, cache) as workspace:
        shutil.rmtree(source / "package")
        (source / "package").write_text("a file now")
        (source / "script.sh").unlink()
        (source / "script.sh").mkdir()
        (source / "script.sh/inner").write_text("a directory now")
        workspace.sync()
        assert contents(remote) == contents(source)


def test_a_directory_with_other_files_is_not_replaced_by_a_file(
    source: Path, remote: Path, cache: CacheOptions
) -> None:
    with opened(source, remote, cache) as workspace:
        (remote / "package/results").write_text("theirs")
        shutil.rmtree(source / "package")
        (source / "package").write_text("a file now")
        with pytest.raises(WorkspaceError, match="contains other files"):
            workspace.sync()
        (remote / "package/results").unlink()
        workspace.sync()
        assert contents(remote) == contents(source)


def test_a_sync_does_not_follow_symlinks_created_by_others(
    source: Path, remote: Path, cache: CacheOptions, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    with opened(source, remote, cache) as workspace:
        (remote / "package").rename(elsewhere)
        (remote / "package").symlink_to(elsewhere)
        (source / "package/module.py").unlink()
        workspace.sync()
        assert contents(remote) == contents(source)
        assert (elsewhere / "module.py").exists()


def test_a_damaged_record_of_written_files_causes_only_a_rewrite(
    source: Path, remote: Path, cache: CacheOptions
) -> None:
    opened(source, remote, cache).close()
    with (remote / ".mesh-workspace/names").open("r+b") as names:
        names.seek(40)
        names.write(b"damaged")
    with opened(source, remote, cache) as workspace:
        assert workspace.result.overwritten == 5
        assert contents(remote) == contents(source)


def test_the_clients_own_directory_is_left_alone(source: Path, cache: CacheOptions) -> None:
    before = {path: path.lstat().st_ctime_ns for path in source.rglob("*")}
    with sync_workspace(this_host(), source, cache=cache) as workspace:
        assert only(workspace).is_origin
        assert workspace.result.written == 0
    assert {path: path.lstat().st_ctime_ns for path in source.rglob("*")} == before


def test_an_environment_variable_of_the_host_sets_the_directory(
    source: Path, remote: Path, cache: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKSPACE_DIR", str(remote))
    with sync_workspace(this_host(), source, cache=cache) as workspace:
        assert workspace.directories == (str(remote),)
        assert contents(remote) == contents(source)


def test_stale_python_bytecode_is_removed(source: Path, remote: Path, cache: CacheOptions) -> None:
    (source / "__pycache__").mkdir()
    (source / "__pycache__/theirs.pyc").write_text("of the client")
    with opened(source, remote, cache) as workspace:
        assert not (remote / "__pycache__").exists()
        compiled = remote / "package/__pycache__"
        compiled.mkdir()
        (compiled / "module.cpython-311.pyc").write_text("old")
        (compiled / "other.cpython-311.pyc").write_text("of something else")
        (source / "package/module.py").write_text("ANSWER = 43\n")
        workspace.sync()
        assert [path.name for path in compiled.iterdir()] == ["other.cpython-311.pyc"]
        (compiled / "module.cpython-311.pyc").write_text("old")
        (compiled / "other.cpython-311.pyc").unlink()
        shutil.rmtree(source / "package")
        workspace.sync()
        assert not (remote / "package").exists()


def test_ignored_files_are_not_written(source: Path, remote: Path, cache: CacheOptions) -> None:
    chosen = SnapshotOptions(ignore=("*.bin",))
    with sync_workspace(this_host(), source, remote, cache=cache, snapshot=chosen):
        assert "package/inner/large.bin" not in contents(remote)
        assert "package/module.py" in contents(remote)


def test_invalid_operations_are_refused(
    source: Path, remote: Path, cache: CacheOptions, tmp_path: Path
) -> None:
    with pytest.raises(SnapshotError, match="not a directory"):
        sync_workspace(this_host(), tmp_path / "nowhere")
    with pytest.raises(WorkspaceError, match="relative"):
        sync_workspace(this_host(), source, "there")
    with pytest.raises(WorkspaceError, match="inside"):
        sync_workspace(this_host(), source, source / "inner/place", cache=cache)
    remote.write_text("a file")
    with pytest.raises(WorkspaceError, match="cannot be written"):
        opened(source, remote, cache)
    remote.unlink()
    workspace = opened(source, remote, cache)
    workspace.close()
    workspace.close()
    with pytest.raises(WorkspaceError, match="closed"):
        workspace.sync()
