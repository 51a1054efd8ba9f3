"""The examples as pages: their description, source and output."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from tools.workspace import ROOT

FOLDER = "examples"
_PRINTS = "\n# prints:\n"
_HEAD = (
    "# Examples",
    "",
    "`python3 -m tools run examples/NAME` runs an example from a clone, and tests run all of them.",
    "",
    "| example | shows |",
    "| --- | --- |",
)


def pages() -> Iterator[tuple[Path, str, str]]:
    """Yield the file, the path of the page and its Markdown text for each example."""
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix in (".py", ".ipynb"):
            text = _script(path) if path.suffix == ".py" else _notebook(path)
            yield path, page_path(path), text


def page_path(path: Path) -> str:
    """Return the path of the page of an example."""
    return f"{path.relative_to(ROOT).as_posix()}.md"


def index() -> str:
    """Return the text of the gallery's first page."""
    rows = []
    for path, page, _ in pages():
        name = path.relative_to(ROOT / "examples").as_posix()
        summary = _summary(path)
        rows.append(f"| [`{name}`]({page.removeprefix(f'{FOLDER}/')}) | {summary} |")
    return "\n".join([*_HEAD, *rows, ""])


def _summary(path: Path) -> str:
    if path.suffix == ".py":
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    else:
        docstring = _cells(path)[0][1].lstrip("# ")
    return docstring.strip().partition("\n")[0]


def _script(path: Path) -> str:
    source = path.read_text("utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    code, _, printed = source.partition(_PRINTS)
    parts = [f"# {path.name}", docstring, _fenced("python", code)]
    if printed:
        lines = [line.removeprefix("#").removeprefix("   ") for line in printed.splitlines()]
        parts += ["It prints:", _fenced("text", "\n".join(lines))]
    return "\n\n".join(parts) + "\n"


def _notebook(path: Path) -> str:
    parts = []
    for kind, source in _cells(path):
        parts.append(source if kind == "markdown" else _fenced("python", source))
    return "\n\n".join(parts) + "\n"


def _cells(path: Path) -> list[tuple[str, str]]:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.strip()}\n```"
