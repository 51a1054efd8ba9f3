"""Quoting of SQL identifiers and literals."""

from __future__ import annotations

__all__ = ["quoted", "quoted_literal"]


def quoted(name: str) -> str:
    """Quote a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quoted_literal(text: str) -> str:
    """Quote a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
