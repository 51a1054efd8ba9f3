"""The code blocks, headings and links of a Markdown file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tools.workspace import ROOT

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>\S*)(?: .*)?$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, and the line number of its first line."""

    language: str
    first_line: int
    lines: tuple[str, ...]

    def commands(self) -> Iterator[tuple[int, str, list[str]]]:
        """Yield line number, command and expected output of each command of a console block."""
        starts = [at for at, line in enumerate(self.lines) if line.startswith("$ ")]
        for start, end in pairwise([*starts, len(self.lines)]):
            shown = [line for line in self.lines[start + 1 : end] if line.strip()]
            yield self.first_line + start, self.lines[start][2:], shown


@dataclass(frozen=True)
class Document:
    """A Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        """Its path relative to the root."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def lines(self) -> list[str]:
        """Its lines."""
        return self.path.read_text(encoding="utf-8").splitlines()

    def blocks(self) -> Iterator[Block]:
        """Yield its fenced blocks.

        Raises:
            ValueError: A fence is never closed.
        """
        opened: re.Match[str] | None = None
        body: list[str] = []
        for number, line in enumerate(self.lines, 1):
            fence = _FENCE.match(line)
            if opened is None:
                opened, body = fence, []
            elif fence and fence["ticks"] == opened["ticks"] and not fence["language"]:
                yield Block(opened["language"], number - len(body), tuple(body))
                opened = None
            else:
                body.append(line.removeprefix(opened["indent"]))
        if opened is not None:
            raise ValueError(f"{self.name}: the last fence is never closed")

    def commands(self) -> Iterator[tuple[int, str, list[str]]]:
        """Yield line number, command and expected output of each command in console blocks."""
        for block in self.blocks():
            if block.language == "console":
                yield from block.commands()

    def prose(self) -> Iterator[tuple[int, str]]:
        """Yield the numbered lines outside of blocks."""
        inside = {
            number
            for block in self.blocks()
            for number in range(block.first_line - 1, block.first_line + len(block.lines) + 1)
        }
        for number, line in enumerate(self.lines, 1):
            if number not in inside:
                yield number, line

    def links(self) -> Iterator[tuple[int, str]]:
        """Yield the targets of its links to files in the repository."""
        for number, line in self.prose():
            for target in _LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if not re.match(r"[a-z]+:", target):
                    yield number, target

    def anchors(self) -> set[str]:
        """Return the anchors to which links into this file may point."""
        headings = [found.group(1) for _, line in self.prose() if (found := _HEADING.match(line))]
        return {anchor(heading) for heading in headings}


def anchor(heading: str) -> str:
    """Return the anchor that Markdown renderers derive from a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def documents() -> list[Document]:
    """Return every document for users."""
    paths = {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/*.md")}
    return [Document(path) for path in sorted(paths)]
