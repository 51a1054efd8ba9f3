"""Text from a case for a terminal: without characters that control it."""

from __future__ import annotations

__all__ = ["escape", "format_len", "shorten"]

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def escape(text: str) -> str:
    """Replace everything but printable characters by backslash escapes.

    This includes line feeds, characters that change the direction of text, and surrogates.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode()
        for one in text
    )


def shorten(text: str, len_max: int) -> str:
    """Return the start of a text that has more than `len_max` characters, and an ellipsis."""
    return text if len(text) <= len_max else f"{text[: max(0, len_max - 3)]}..."


def format_len(length: int) -> str:
    """Return a length in bytes for people, such as `4 MiB`."""
    if length < 1024:
        return f"{length} bytes"
    exponent = min((length.bit_length() - 1) // 10, len(_UNITS))
    return f"{length / 1024**exponent:.1f}".removesuffix(".0") + f" {_UNITS[exponent - 1]}"
