"""Links between documents resolve to an existing file and heading."""

import pytest

from tests.docs.markdown import Document, anchor, documents


@pytest.mark.parametrize("document", documents(), ids=lambda one: one.name)
def test_links_resolve(document: Document) -> None:
    for line, target in document.links():
        assert leads(document, target), f"{document.name}:{line}: {target}"


def leads(document: Document, target: str) -> bool:
    """Return whether the target of a link exists."""
    path, _, fragment = target.partition("#")
    end = (document.path.parent / path).resolve() if path else document.path
    if not end.exists():
        return False
    return not fragment or fragment in Document(end).anchors()


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("What is guaranteed", "what-is-guaranteed"),
        ("`call` and `stream`", "call-and-stream"),
        ("Why? (in short)", "why-in-short"),
    ],
)
def test_anchor_of_a_heading(heading: str, name: str) -> None:
    assert anchor(heading) == name
