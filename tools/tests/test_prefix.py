"""The published names follow one setting, and an index accepts them."""

import subprocess
from pathlib import Path

import pytest

from tools.prefix import distributions, prefix, renamed, set_prefix, taken
from tools.workspace import packages


def test_every_distribution_name_has_the_configured_prefix() -> None:
    assert [one.distribution for one in packages()] == distributions(prefix())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pip install 'torchmesh-jobs[cli]'", "pip install 'other-jobs[cli]'"),
        ("dist/torchmesh_core-*.whl", "dist/other_core-*.whl"),
        ('version("torchmesh-fs")', 'version("other-fs")'),
        ("mesh-core imports mesh_core", "mesh-core imports mesh_core"),
        ("torchmesh-corer, x-torchmesh-fs", "torchmesh-corer, x-torchmesh-fs"),
    ],
)
def test_only_distributions_and_their_wheels_are_renamed(text: str, expected: str) -> None:
    assert renamed(text, "torchmesh", "other") == expected


def test_names_that_an_index_treats_as_equal_count_as_taken() -> None:
    names = ["mesh-core", "mesh-tensor", "torchmesh-fs"]
    assert dict(taken(names, ["meshcore", "Mesh.Tensor", "t0rchmesh", "cloudpickle"])) == {
        "mesh-core": "meshcore",
        "mesh-tensor": "Mesh.Tensor",
    }
    assert dict(taken(["mesh-rdma-1l0"], ["meshrdmaiiO"])) == {"mesh-rdma-1l0": "meshrdmaiiO"}


def test_setting_the_prefix_updates_all_texts_except_history(tmp_path: Path) -> None:
    texts = {
        "pyproject.toml": '[tool.mesh]\ndistribution-prefix = "torchmesh"\n',
        "docs/start.md": "$ pip install torchmesh-core\n",
        "docs/decisions/0001.md": "torchmesh-core was chosen.\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "--all"], cwd=tmp_path, check=True)
    assert [path.name for path in set_prefix("other", tmp_path)] == ["start.md", "pyproject.toml"]
    assert prefix(tmp_path) == "other"
    assert (tmp_path / "docs/start.md").read_text() == "$ pip install other-core\n"
    assert "torchmesh" in (tmp_path / "docs/decisions/0001.md").read_text()
