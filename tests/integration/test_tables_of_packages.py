"""The tables that packages add to mesh-telemetry pass the public conformance kit for tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh_core import this_host
from mesh_fs import MountOptions, remotemount
from mesh_jobs import ProcessJob
from mesh_rdma import RDMAAction, RDMABuffer, RDMAReleased
from mesh_telemetry import Telemetry
from mesh_telemetry.testing import SourceConformance


class TestTransfers(SourceConformance):
    source = "rdma"

    @contextmanager
    def happening(self) -> Iterator[None]:
        buffer = RDMABuffer(bytearray(b"four"))
        here = bytearray(4)
        buffer.read_into(here).get()
        buffer.write_from(here).get()
        RDMAAction().read_remote(here, buffer).submit().get()
        yield
        buffer.drop().get()


class TestMounts(SourceConformance):
    source = "fs"

    @pytest.fixture(autouse=True)
    def tree(self, tmp_path: Path) -> None:
        self.source_folder, self.shown = tmp_path / "source", tmp_path / "shown"
        self.source_folder.mkdir()
        (self.source_folder / "train.py").write_text("print('hello')\n")

    @contextmanager
    def happening(self) -> Iterator[None]:
        options = MountOptions(backend="unpack")
        with remotemount(this_host(), self.source_folder, self.shown, mount=options) as mount:
            mount.wait(60.0)
            yield


class TestJobs(SourceConformance):
    source = "jobs"

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.folder_path = tmp_path

    @contextmanager
    def happening(self) -> Iterator[None]:
        job = ProcessJob({"trainers": 1}, folder=self.folder_path)
        job.apply()
        try:
            job.state(timeout=60.0)
            yield
        finally:
            job.kill()


def test_failed_transfers_have_an_error_message() -> None:
    with Telemetry() as telemetry:
        buffer = RDMABuffer(bytearray(8))
        buffer.drop().get()
        with pytest.raises(RDMAReleased):
            buffer.read_into(bytearray(8)).get()
        (row,) = telemetry.query(
            "select kind, status, error, bytes from rdma_transfers"
        ).table.to_pylist()
    assert (row["kind"], row["status"], row["bytes"]) == ("read", "failed", 8)
    assert row["error"].startswith("RDMAReleased")
