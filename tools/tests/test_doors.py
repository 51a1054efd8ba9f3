"""The rule about public modules: exactly three, without accidental exports."""

import pytest

from tools.rules import doors
from tools.tests.conftest import MakeTree
from tools.workspace import DOOR_FILES, PACKAGES, Package

DOOR = '"""For programs."""\n\n__all__: list[str] = []\n'


def tree_files(**changed: str) -> dict[str, str]:
    """Return the public modules of all packages; `changed` replaces those of mesh_jobs by name."""
    files = {
        f"packages/{name}/src/{Package(name).import_name}/{file}": DOOR
        for name in PACKAGES
        for file in DOOR_FILES
    }
    files |= {file.replace("__init__.py", "py.typed"): "" for file in files if "__init__" in file}
    for module, text in changed.items():
        files[f"packages/mesh-jobs/src/mesh_jobs/{module}.py"] = text
    return files


def test_three_doors_are_right(make_tree: MakeTree) -> None:
    assert list(doors.three_doors(make_tree(tree_files()))) == []


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        ("spi", "__all__ = []\n", "without a docstring"),
        ("backends", DOOR, "a fourth public module"),
        ("spi", '"""S."""\nfrom mesh_jobs._a import b\n', "b is neither offered"),
        ("spi", '"""S."""\nimport os\n', "os is neither offered"),
    ],
)
def test_door_that_is_wrong(make_tree: MakeTree, module: str, text: str, message: str) -> None:
    (finding,) = doors.three_doors(make_tree(tree_files(**{module: text})))
    assert message in finding.message


def test_names_are_offered_by_a_list_or_by_their_own_name(make_tree: MakeTree) -> None:
    text = '"""S."""\nimport os as _os\nfrom mesh_jobs._a import b as b\n'
    assert list(doors.three_doors(make_tree(tree_files(spi=text)))) == []
    text = '"""S."""\nfrom mesh_jobs._a import b\n\n__all__ = ["b"]\n'
    assert list(doors.three_doors(make_tree(tree_files(spi=text)))) == []


def test_a_command_beside_the_doors_is_right(make_tree: MakeTree) -> None:
    command = DOOR + "\nif __name__ == '__main__':\n    print('it runs')\n"
    assert list(doors.three_doors(make_tree(tree_files(worker=command)))) == []
    (finding,) = doors.three_doors(make_tree(tree_files(worker=command.replace("[]", "['a']"))))
    assert "a fourth public module" in finding.message


def test_missing_door_and_missing_marker_are_told(make_tree: MakeTree) -> None:
    files = tree_files()
    del files["packages/mesh-jobs/src/mesh_jobs/testing.py"]
    del files["packages/mesh-fs/src/mesh_fs/py.typed"]
    found = {finding.path for finding in doors.three_doors(make_tree(files))}
    assert found == {
        "packages/mesh-jobs/src/mesh_jobs/testing.py",
        "packages/mesh-fs/src/mesh_fs/py.typed",
    }
