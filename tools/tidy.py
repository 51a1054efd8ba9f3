"""The check of the house rules: `python3 -m tools.tidy` prints each violation."""

import sys
from collections.abc import Iterator

from tools.rules import (
    crates,
    import_cycles,
    imports,
    layout,
    prose,
    public_modules,
    published_names,
    rust,
    sources,
)
from tools.rules.finding import Finding
from tools.rules.tree import Tree
from tools.workspace import ROOT

RULES = (
    layout.file_names,
    layout.file_lengths,
    layout.line_lengths,
    sources.no_sleep_in_tests,
    sources.todo_has_an_issue,
    prose.no_machine_paths,
    prose.no_registry_hosts,
    imports.no_private_import_across_packages,
    import_cycles.no_import_cycle,
    public_modules.public_modules,
    public_modules.package_files,
    public_modules.core_range_holds,
    published_names.published_names,
    published_names.no_folder_is_installed,
    rust.wire_is_pure,
    crates.banned_crates,
    crates.no_crate_edge_between_packages,
    crates.libraries_of_different_names,
    crates.allowed_licences,
)


def findings(tree: Tree) -> Iterator[Finding]:
    """Yield all violations in the tree."""
    for rule in RULES:
        yield from rule(tree)


def main() -> int:
    """Print all findings; warnings alone are not a failure."""
    found = list(findings(Tree(ROOT)))
    for finding in found:
        print(finding)
    errors = sum(not finding.is_warning for finding in found)
    print(f"tidy: {len(RULES)} rules, {errors} broken, {len(found) - errors} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
