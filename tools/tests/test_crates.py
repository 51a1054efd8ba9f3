"""Rules about crates: permitted dependencies and licences."""

from pathlib import Path
from typing import Any

import pytest

from tools.rules.crates import Graph, is_allowed

ALLOWED = frozenset({"MIT", "BSD-3-Clause", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"})


@pytest.mark.parametrize(
    "expression",
    [
        "MIT",
        "MIT OR Apache-2.0",
        "Apache-2.0/MIT",
        "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "(GPL-3.0 OR (MIT AND Unicode-3.0)) AND BSD-3-Clause",
    ],
)
def test_a_satisfied_licence_expression_is_accepted(expression: str) -> None:
    assert is_allowed(expression, ALLOWED)


@pytest.mark.parametrize(
    "expression", ["", "GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR Apache-2.0) AND MIT"]
)
def test_an_unsatisfied_licence_expression_is_refused(expression: str) -> None:
    assert not is_allowed(expression, ALLOWED)


def crate(name: str, package: str | None = None) -> dict[str, Any]:
    """Return a crate as listed by `cargo metadata`.

    With a package it belongs to the workspace, and with `""` it is shared.
    """
    ours = f"/tree/packages/{package}/crates" if package else "/tree/crates"
    folder = "/registry" if package is None else ours
    return {"id": name, "name": name, "manifest_path": f"{folder}/{name}/Cargo.toml"}


def test_the_graph_lists_the_direct_users_of_a_crate() -> None:
    ours = [crate("wire", "mesh-core"), crate("wire-py", "mesh-core")]
    graph = Graph(
        {
            "packages": [*ours, crate("pyo3"), crate("pyo3-ffi")],
            "workspace_members": ["wire", "wire-py"],
            "resolve": {
                "nodes": [
                    {"id": "wire", "deps": []},
                    {"id": "wire-py", "deps": [{"pkg": "wire"}, {"pkg": "pyo3"}]},
                    {"id": "pyo3", "deps": [{"pkg": "pyo3-ffi"}]},
                    {"id": "pyo3-ffi", "deps": []},
                ]
            },
        }
    )
    assert [user["name"] for user in graph.users_of("pyo3")] == ["wire-py"]
    edges = [(user["name"], used["name"]) for user, used in graph.member_edges()]
    assert edges == [("wire-py", "wire")]


@pytest.mark.parametrize(
    ("user", "used", "is_found"),
    [
        ("mesh-core", "mesh-core", False),
        ("mesh-core", "", False),
        ("", "", False),
        ("mesh-core", "mesh-rdma", True),
        ("", "mesh-core", True),
    ],
)
def test_crates_use_their_own_package_and_shared_crates_only(
    user: str, used: str, is_found: bool
) -> None:
    graph = Graph(
        {
            "packages": [crate("user", user), crate("used", used)],
            "workspace_members": ["user", "used"],
            "resolve": {
                "nodes": [{"id": "user", "deps": [{"pkg": "used"}]}, {"id": "used", "deps": []}]
            },
        }
    )
    assert bool(list(graph.edges_between_packages(Path("/tree")))) == is_found
