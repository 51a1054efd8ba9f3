"""Files that are incomplete are not published."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.artifacts import Artifacts, problems
from tools.workspace import ROOT, Package, package

METADATA = """\
Metadata-Version: 2.4
Name: torchmesh-jobs
Version: {version}
Summary: Hosts.
Keywords: cluster
Author: The Mesh authors
License-Expression: BSD-3-Clause
License-File: LICENSE
Requires-Python: >=3.11
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

"""
LICENCE = (ROOT / "LICENSE").read_text()


def made(folder: Path, of: Package, metadata: str, files: dict[str, str]) -> Artifacts:
    """Write a wheel with these files, and a source distribution with the licence."""
    info = f"x-{of.version}.dist-info"
    wheel, sdist = folder / "x.whl", folder / "x.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", metadata)
        for name, text in files.items():
            archive.writestr(name.replace("INFO", info), text)
    with tarfile.open(sdist, "w:gz") as source:
        member = tarfile.TarInfo("x/LICENSE")
        source.addfile(member, io.BytesIO())
    return Artifacts(of, sdist, wheel)


def test_complete_files_have_no_problems(tmp_path: Path) -> None:
    jobs = package("mesh-jobs")
    metadata = METADATA.format(version=jobs.version)
    files = made(tmp_path, jobs, metadata, {"INFO/licenses/LICENSE": LICENCE})
    assert list(problems(files)) == []


@pytest.mark.parametrize(
    ("name", "metadata", "files", "problem"),
    [
        ("mesh-jobs", METADATA, {}, "the text of the licence is missing"),
        ("mesh-jobs", METADATA, {"INFO/licenses/LICENSE": "other"}, "the text of the licence"),
        ("mesh-jobs", METADATA.replace("Summary", "Home"), {}, "no Summary"),
        ("mesh-jobs", METADATA.replace("torchmesh-jobs", "jobs"), {}, "it is jobs"),
        ("mesh-jobs", METADATA, {"tests/test_a.py": ""}, "it contains tests: tests/test_a.py"),
        ("mesh-core", METADATA, {}, "it does not list the crates"),
    ],
)
def test_problems_of_incomplete_files_are_reported(
    tmp_path: Path, name: str, metadata: str, files: dict[str, str], problem: str
) -> None:
    target = package(name)
    built = made(tmp_path, target, metadata.format(version=target.version), files)
    assert any(problem in one for one in problems(built)), list(problems(built))
