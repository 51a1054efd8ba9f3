"""A test that a document names as evidence exists."""

import re

import pytest

from tests.docs.markdown import Document, documents
from tools.workspace import ROOT

_NAMED = re.compile(r"`(\w+\.(?:py|rs))::(\w+)`")
_RUST_TEST = re.compile(r"`(\w+)::(\w+)`")
_FUZZ_TARGETS = re.compile(r"fuzz targets? ((?:`\w+`(?:, | and )?)+)")
_FOLDERS = ("packages/*/tests", "packages/*/crates/*/tests", "tests")


def named_tests(document: Document) -> list[tuple[str, str]]:
    """Return the file and function of every test that a document names."""
    text = document.path.read_text(encoding="utf-8")
    return [(found[1], found[2]) for found in _NAMED.finditer(text)]


def exists(file: str, name: str) -> bool:
    """Return whether a test file has a function with that name."""
    found = [path for folder in _FOLDERS for path in ROOT.glob(f"{folder}/**/{file}")]
    defined = re.compile(rf"^(?:async )?(?:def|fn) {name}\(", re.MULTILINE)
    return any(defined.search(path.read_text(encoding="utf-8")) for path in found)


WITNESSED = [document for document in documents() if named_tests(document)]


@pytest.mark.parametrize("document", WITNESSED, ids=lambda one: one.name)
def test_named_tests_exist(document: Document) -> None:
    missing = [f"{file}::{name}" for file, name in named_tests(document) if not exists(file, name)]
    assert missing == []


def test_every_rust_test_and_fuzz_target_of_the_security_page_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    crates = [*ROOT.glob("packages/*/crates/*"), *ROOT.glob("crates/*")]
    sources = [path for crate in crates for path in crate.rglob("*.rs")]
    named = set(_RUST_TEST.findall(text)) - {("file", "test")}
    missing = [
        f"{module}::{name}"
        for module, name in named
        if not any(
            re.search(rf"\bfn {name}\(", path.read_text(encoding="utf-8"))
            for path in sources
            if module in (path.stem, path.parent.name)
        )
    ]
    targets = re.findall(r"`(\w+)`", " ".join(_FUZZ_TARGETS.findall(text)))
    missing += [name for name in targets if not any(ROOT.glob(f"fuzz/targets/{name}.*"))]
    assert len(named) > 50
    assert missing == []


def test_every_delivery_guarantee_names_a_test() -> None:
    text = (ROOT / "docs" / "concepts" / "delivery.md").read_text(encoding="utf-8")
    paragraphs = [one for one in text.split("\n\n") if one.startswith("**")]
    assert len(paragraphs) > 20
    naked = [
        one.splitlines()[0]
        for one in paragraphs
        if not _NAMED.search(one) and "simulator" not in one and "proves nothing" not in one
    ]
    assert naked == []
