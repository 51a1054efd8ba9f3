"""The pages of the reference: one for each public module, and one for each public name."""

from __future__ import annotations

from collections.abc import Iterator

from tools.site.public_names import PublicModule, public_modules

FOLDER = "reference"


def pages() -> Iterator[tuple[str, str, str]]:
    """Yield the module, the path and the Markdown text of each page."""
    for module in public_modules():
        yield module.name, f"{FOLDER}/{module.name}/index.md", _module_page(module)
        for one in module.names:
            text = f"---\ntitle: {one.name}\n---\n\n::: {module.name}.{one.name}\n"
            yield module.name, f"{FOLDER}/{module.name}/{one.name}.md", text


def index(modules: list[str]) -> str:
    """Return the text of the first page of the reference."""
    lines = [f"- [`{name}`]({name}/index.md)" for name in modules]
    text = "Every public name of the packages. Modules that begin with an underscore are private."
    return "\n".join(["# Reference", "", text, "", *lines, ""])


def _module_page(module: PublicModule) -> str:
    rows = [f"| [`{one.name}`]({one.name}.md) | {one.summary} |" for one in module.names]
    table = ["| name | summary |", "| --- | --- |", *rows]
    return "\n".join([f"# {module.name}", "", module.docstring, "", *table, ""])
