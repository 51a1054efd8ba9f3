"""Links between files of the repository lead to their pages on the website."""

from pathlib import Path

from tools.site.links import rewrite
from tools.workspace import ROOT

GUIDE = ROOT / "docs" / "guides" / "hosts.md"


def page_of(path: Path) -> str | None:
    """Return a page for each file that is not part of tests."""
    name = path.relative_to(ROOT).as_posix()
    return None if name.startswith("tests/") else f"pages/{name}"


def rewritten(text: str) -> str:
    """Return the text of a guide on the website."""
    return rewrite(text, GUIDE, "pages/docs/guides/hosts.md", page_of)


def test_links_to_repository_files_lead_to_their_pages() -> None:
    text = "[jobs](jobs.md#ssh), [security](../../SECURITY.md)"
    assert rewritten(text) == "[jobs](jobs.md#ssh), [security](../../SECURITY.md)"
    assert (
        rewrite(text, GUIDE, "hosts.md", page_of)
        == "[jobs](pages/docs/guides/jobs.md#ssh), [security](pages/SECURITY.md)"
    )


def test_a_link_without_a_page_becomes_text() -> None:
    assert rewritten("see [`programs.py`](../../tests/programs.py)") == "see `programs.py`"


def test_urls_anchors_missing_files_and_code_are_unchanged() -> None:
    text = "[a](https://example.org/x), [b](#here), [c](missing.md)\n\n```\n[jobs](jobs.md)\n```\n"
    assert rewritten(text) == text
