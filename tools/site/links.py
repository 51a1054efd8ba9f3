"""Conversion of links in Markdown pages, which are relative to the repository, for the website."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from tools.workspace import ROOT

_LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCED = re.compile(r"^( *```.*?^ *```)", re.DOTALL | re.MULTILINE)


def rewrite(text: str, source: Path, page: str, page_of: Callable[[Path], str | None]) -> str:
    """Return a text whose links to files of the repository lead to their pages.

    Args:
        text: The text.
        source: The file that contains it.
        page: The path of its page in the website.
        page_of: Returns the page of a file; None if the website does not contain it. Such a link
            is replaced by its text.
    """

    def replaced(found: re.Match[str]) -> str:
        target = found["target"]
        if re.match(r"[a-z]+:", target):
            return found[0]
        path = Path(os.path.normpath(source.parent / target))
        if not path.is_relative_to(ROOT) or not path.exists():
            return found[0]
        there = page_of(path)
        if there is None:
            return found["text"][1:-1]
        relative = os.path.relpath(there, os.path.dirname(page))
        return f"{found['text']}({relative}{found['anchor'] or ''})"

    parts = _FENCED.split(text)
    # Odd parts are code.
    parts[::2] = [_LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)
