"""The hooks that MkDocs calls while it builds the website."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# MkDocs loads this file by its path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from mkdocs.structure.files import File

from tools.site import gallery, links, reference
from tools.workspace import ROOT

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = ROOT / "docs"
#: Files outside of docs/ that have pages.
PROJECT = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "STYLE.md", "README.md")


#: The path and the text of each generated page. MkDocs executes this file again for each build.
_generated: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Generate pages, and add them to the navigation."""
    decisions = sorted(one.name for one in (DOCS / "decisions").glob("0*.md"))
    examples = []
    for _, path, text in gallery.pages():
        _generated[path] = text
        examples.append(path)
    _generated[f"{gallery.FOLDER}/index.md"] = gallery.index()
    names: dict[str, list[str]] = {}
    for module, path, text in reference.pages():
        _generated[path] = text
        names.setdefault(module, []).append(path)
    _generated[f"{reference.FOLDER}/index.md"] = reference.index(list(names))
    for name in PROJECT:
        _generated[f"project/{name}"] = (ROOT / name).read_text("utf-8")
    assert config.nav is not None
    config.nav += [
        {"Examples": [f"{gallery.FOLDER}/index.md", *examples]},
        {"Reference": [f"{reference.FOLDER}/index.md", *({one: names[one]} for one in names)]},
        {
            "Project": [
                *(f"project/{name}" for name in PROJECT),
                {"Decisions": ["decisions/README.md", *(f"decisions/{one}" for one in decisions)]},
            ]
        },
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, text in _generated.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace links to files of the repository by links to their pages."""
    path = page.file.src_uri
    if path.startswith(reference.FOLDER):
        return markdown
    return links.rewrite(markdown, _source_of(path), path, _page_of)


def _source_of(page: str) -> Path:
    """Return the file of the repository from which a page was made."""
    if page.startswith("project/"):
        return ROOT / page.removeprefix("project/")
    if page.startswith(f"{gallery.FOLDER}/"):
        return ROOT / page.removesuffix(".md")
    return DOCS / page


def _page_of(path: Path) -> str | None:
    """Return the page of a file of the repository; None if it has none."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix() if path.is_file() else None
    if path.is_relative_to(ROOT / "examples") and path.is_file():
        return gallery.page_path(path)
    name = path.relative_to(ROOT).as_posix()
    return f"project/{name}" if name in PROJECT else None
