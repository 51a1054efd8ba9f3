"""The rule about public modules: only the listed modules, without accidental exports."""

import pytest

from tools.rules.public_modules import public_modules
from tools.tests.conftest import MakeTree
from tools.workspace import PACKAGES, PUBLIC_MODULES, Package

MODULE = '"""For programs."""\n\n__all__ = ["run"]\n'
COMMAND = '"""For a shell."""\n\n__all__: list[str] = []\n'


def tree_files(**changed: str) -> dict[str, str]:
    """Return all public modules; `changed` replaces modules of mesh_jobs by name."""
    files = {
        f"packages/{name}/src/{Package(name).import_name}/{file}": MODULE
        for name in PACKAGES
        for file in PUBLIC_MODULES
    }
    files |= {file.replace("__init__.py", "py.typed"): "" for file in files if "__init__" in file}
    for module, text in changed.items():
        files[f"packages/mesh-jobs/src/mesh_jobs/{module}.py"] = text
    return files


def test_valid_public_modules_have_no_findings(make_tree: MakeTree) -> None:
    assert list(public_modules(make_tree(tree_files()))) == []


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        ("spi", "__all__ = []\n", "without a docstring"),
        ("backends", MODULE, "a public module: start"),
        ("spi", COMMAND, "delete it"),
        ("spi", '"""S."""\nfrom mesh_jobs._a import b\n', "b is neither offered"),
        ("spi", '"""S."""\nimport os\n', "os is neither offered"),
    ],
)
def test_an_invalid_public_module_is_reported(
    make_tree: MakeTree, module: str, text: str, message: str
) -> None:
    (finding,) = public_modules(make_tree(tree_files(**{module: text})))
    assert message in finding.message


def test_names_are_exported_by_a_list_or_a_redundant_alias(make_tree: MakeTree) -> None:
    text = '"""S."""\nimport os as _os\nfrom mesh_jobs._a import b as b\n'
    assert list(public_modules(make_tree(tree_files(spi=text)))) == []
    text = '"""S."""\nfrom mesh_jobs._a import b\n\n__all__ = ["b"]\n'
    assert list(public_modules(make_tree(tree_files(spi=text)))) == []


def test_an_additional_module_is_public_in_its_package_only(make_tree: MakeTree) -> None:
    files = tree_files(services=MODULE)
    files["packages/mesh-core/src/mesh_core/services.py"] = MODULE
    found = [finding.path for finding in public_modules(make_tree(files))]
    assert found == ["packages/mesh-jobs/src/mesh_jobs/services.py"]


def test_a_command_without_exports_is_valid(make_tree: MakeTree) -> None:
    command = COMMAND + "\nif __name__ == '__main__':\n    print('it runs')\n"
    assert list(public_modules(make_tree(tree_files(worker=command)))) == []
    (finding,) = public_modules(make_tree(tree_files(worker=command.replace("[]", "['a']"))))
    assert "a public module: start" in finding.message


def test_modules_are_optional_but_the_marker_is_required(make_tree: MakeTree) -> None:
    files = tree_files()
    del files["packages/mesh-jobs/src/mesh_jobs/testing.py"]
    del files["packages/mesh-fs/src/mesh_fs/py.typed"]
    found = [finding.path for finding in public_modules(make_tree(files))]
    assert found == ["packages/mesh-fs/src/mesh_fs/py.typed"]
