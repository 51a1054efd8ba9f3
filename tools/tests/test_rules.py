"""The violations that each house rule finds, and the code that it accepts."""

from collections.abc import Callable, Iterator

import pytest

from tools.rules import imports, layout, prose, rust, sources
from tools.rules.finding import Finding
from tools.rules.tree import Tree
from tools.tests.conftest import MakeTree

Rule = Callable[[Tree], Iterator[Finding]]

CAUGHT: list[tuple[Rule, str, str, str]] = [
    (layout.file_names, "packages/mesh-core/src/mesh_core/_util.py", "", "'util' in a file name"),
    (layout.file_names, "crates/x/src/proc_manager.rs", "", "'manager' in a file name"),
    (layout.file_lengths, "a.py", "x = 1\n" * 501, "501 lines"),
    (layout.line_lengths, "a.rs", "// " + "x" * 98, "101 columns"),
    (sources.no_sleep_in_tests, "tests/test_a.py", "time.sleep(0.1)", "sleep in a test"),
    (sources.no_sleep_in_tests, "crates/x/tests/a.rs", "thread::sleep(d);", "sleep in a test"),
    (
        sources.no_sleep_in_tests,
        "tests/test_a.py",
        "while True:\n    pass\ntime.sleep(1)",
        "sleep in a test",
    ),
    (sources.todo_has_an_issue, "a.py", "# TODO: later", "write TODO(#12)"),
    (sources.todo_has_an_issue, "a.rs", "// FIXME later", "write FIXME(#12)"),
    (prose.no_machine_paths, "README.md", "see /home/ann/mesh", "a path of one machine"),
    (prose.no_registry_hosts, "docs/a.md", "from pypi.org", "the host of a registry"),
    (
        imports.no_private_import_across_packages,
        "packages/mesh-rdma/src/mesh_rdma/_buffers/buffer.py",
        "from mesh_core._calls.endpoint import endpoint",
        "mesh_core._calls.endpoint.endpoint is private",
    ),
    (
        imports.no_private_import_across_packages,
        "examples/01_hello.py",
        "def f():\n    from mesh_core import _mesh",
        "mesh_core._mesh is private",
    ),
    (rust.wire_is_pure, f"{rust.WIRE_SOURCES}a.rs", "use std::time::Instant;", "std::time"),
]

LEFT_ALONE: list[tuple[Rule, str, str]] = [
    (layout.file_names, "src/_utility_of_ranks.py", ""),
    (layout.file_names, "docs/utils.md", ""),
    (layout.file_lengths, "a.py", "x = 1\n" * 500),
    (sources.no_sleep_in_tests, "src/a.py", "time.sleep(1)"),
    (sources.no_sleep_in_tests, "tests/test_a.py", "await asyncio.sleep(0)"),
    (sources.no_sleep_in_tests, "tests/test_a.py", "while not done:\n    time.sleep(0.1)"),
    (sources.no_sleep_in_tests, "tests/test_a.py", "def sleep(self, seconds):"),
    (sources.no_sleep_in_tests, "tests/test_a.py", "time.sleep(seconds)"),
    (sources.no_sleep_in_tests, "tests/test_a.py", "time.sleep(60)"),
    (sources.todo_has_an_issue, "a.py", "# TODO(#12): later"),
    (sources.todo_has_an_issue, "a.py", 'todo = "TODO"'),
    (prose.no_machine_paths, "README.md", "/home, ~/work/x and packages/work/a"),
    (
        imports.no_private_import_across_packages,
        "packages/mesh-core/tests/test_endpoint.py",
        "from mesh_core._calls.endpoint import endpoint",
    ),
    (
        imports.no_private_import_across_packages,
        "packages/mesh-rdma/src/mesh_rdma/_buffers/buffer.py",
        "from mesh_core.spi import attach",
    ),
    (rust.wire_is_pure, "packages/mesh-core/crates/mesh-sim/src/a.rs", "use std::time::Instant;"),
]


@pytest.mark.parametrize(("rule", "path", "text", "message"), CAUGHT)
def test_a_rule_reports_a_violation(
    make_tree: MakeTree, rule: Rule, path: str, text: str, message: str
) -> None:
    (finding,) = rule(make_tree({path: text}))
    assert finding.path == path
    assert message in finding.message


@pytest.mark.parametrize(("rule", "path", "text"), LEFT_ALONE)
def test_a_rule_accepts_valid_code(make_tree: MakeTree, rule: Rule, path: str, text: str) -> None:
    assert list(rule(make_tree({path: text}))) == []


def test_long_file_is_a_warning_and_a_very_long_one_an_error(make_tree: MakeTree) -> None:
    tree = make_tree({"a.py": "x = 1\n" * 800, "b.py": "x = 1\n" * 801})
    warned, failed = layout.file_lengths(tree)
    assert warned.is_warning
    assert not failed.is_warning


def test_finding_reads_like_a_compiler_message() -> None:
    assert str(Finding("a.py", 3, "too long")) == "a.py:3: too long"


def test_ignored_files_are_not_checked(make_tree: MakeTree) -> None:
    tree = make_tree({".gitignore": "/target/\n", "target/util.rs": ""})
    assert list(layout.file_names(tree)) == []
