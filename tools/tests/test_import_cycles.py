"""The rule about import cycles."""

from tools.rules.import_cycles import no_import_cycle
from tools.tests.conftest import MakeTree

ONE = "packages/mesh-a/src/mesh_a/_one.py"
OTHER = "packages/mesh-a/src/mesh_a/_other.py"


def test_an_import_cycle_through_a_function_is_found(make_tree: MakeTree) -> None:
    late = "def load():\n    from mesh_a import _one\n    return _one\n"
    (found,) = no_import_cycle(make_tree({ONE: "import mesh_a._other\n", OTHER: late}))
    assert found.path in (ONE, OTHER)
    assert "mesh_a._one" in found.message
    assert "mesh_a._other" in found.message


def test_imports_for_type_checkers_form_no_cycle(make_tree: MakeTree) -> None:
    typed = "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from mesh_a._one import A\n"
    tree = make_tree({ONE: "from mesh_a._other import B\n", OTHER: typed})
    assert list(no_import_cycle(tree)) == []
