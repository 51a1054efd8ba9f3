"""A reader finds pages by search, names in the reference, and reads in the dark."""

from __future__ import annotations

import zlib

import pytest

from tests.site.conftest import Open, show
from tools.site.public_names import public_modules
from tools.workspace import ROOT


def test_the_home_page_leads_to_the_first_program(open_page: Open) -> None:
    page = open_page("")
    show(page, "home")
    page.get_by_role("link", name="Start", exact=True).first.click()
    page.wait_for_url("**/start/")
    assert "from mesh_core import" in page.inner_text("article")


@pytest.mark.parametrize("word", ["HostDied", "spawn_procs", "deadlock"])
def test_search_finds_the_typed_word(open_page: Open, word: str) -> None:
    page = open_page("")
    page.get_by_role("textbox", name="Search").fill(word)
    found = page.locator(".md-search-result__item")
    found.first.wait_for()
    show(page, f"search-{word}")
    assert word.lower() in found.first.inner_text().lower()


def test_a_page_of_the_reference_has_signature_types_and_errors(open_page: Open) -> None:
    page = open_page("reference/mesh_core/HostMesh/")
    show(page, "reference")
    text = page.inner_text("article")
    assert "memory_limit: int | str | None = None" in text
    assert "Raises" in text


def test_every_public_name_has_a_page() -> None:
    names = [f"{module.name}/{one.name}" for module in public_modules() for one in module.names]
    pages = {name: ROOT / "site/reference" / name / "index.html" for name in names}
    missing = [name for name, page in pages.items() if "doc doc-object" not in page.read_text()]
    assert missing == []


def test_other_sites_can_link_to_every_public_name() -> None:
    inventory = (ROOT / "site/objects.inv").read_bytes()
    # Four lines of text precede the compressed list.
    listed = zlib.decompress(inventory.split(b"\n", 4)[4]).decode()
    known = {line.split(" ", 1)[0] for line in listed.splitlines()}
    names = [f"{module.name}.{one.name}" for module in public_modules() for one in module.names]
    assert [name for name in names if name not in known] == []


def test_the_comparison_shows_its_picture_and_when_to_choose_another_system(
    open_page: Open,
) -> None:
    page = open_page("comparison/")
    show(page, "comparison")
    assert page.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
    assert page.get_by_role("heading", name="Choose another system when").count() == 1


def test_a_reader_can_choose_dark_mode(open_page: Open) -> None:
    page = open_page("")
    page.get_by_title("Switch to light mode").click()
    page.get_by_title("Switch to dark mode").click()
    page.wait_for_selector("[data-md-color-scheme=slate]")
    show(page, "dark")
