"""Attributes that the program set, as they are stored in rows."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["json_attributes"]


def json_attributes(text: str) -> dict[str, Any]:
    """Parse the attributes of a row."""
    attributes = json.loads(text)
    return attributes if isinstance(attributes, dict) else {}
