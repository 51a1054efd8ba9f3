"""Encoding of events as lines of segment files."""

from __future__ import annotations

import json
from contextlib import suppress

from mesh_core.spi import LogLine, SpanIdentity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from mesh_core.spi import Event

__all__ = ["attributes_text", "encode_line", "line_of"]

_TEXT_LEN_MAX = 16 * 1024
_CAUSES_MAX = 8


def line_of(event: Event) -> tuple[str, dict[str, Any]]:
    """Return the family and the line of an event that is neither a message nor a measurement."""
    line: dict[str, Any] = {"t": event.time_ns // 1000, "k": event.kind}
    if event.kind in ("span_begin", "span_end"):
        line |= {"n": event.call, "outer": event.size, "code": event.code}
        line |= {"name": _truncated(event.text), "actor": event.actor}
        line["attributes"] = attributes_text(event.attributes)
        if isinstance(event.subject, SpanIdentity):
            line |= _trace_context(event.subject)
        return "spans", line
    if event.kind == "row":
        line |= {"actor": event.actor, "table": event.text}
        line["row"] = attributes_text(event.attributes)
        return "rows", line
    line |= {"peer": event.peer, "actor": event.actor, "rank": event.rank}
    if event.kind == "log_line":
        line["text"] = _truncated(event.text)
        if isinstance(event.subject, LogLine):
            line["stream"] = event.subject.stream
            line["mesh"] = event.subject.name.partition("{")[0]
        return "logs", line
    line |= {
        "call": event.call,
        "code": event.code,
        "size": event.size,
        "text": _truncated(event.text),
    }
    attributes = dict(event.attributes or {})
    if isinstance(event.subject, BaseException):
        line["reason"] = _truncated(_error_text(event.subject))
        line["cause"] = _truncated(_causes(event.subject))
    if event.kind == "proc_died":
        tail = attributes.pop("log_tail", None) or ()
        line["log_tail"] = _truncated("\n".join(map(str, tail)))
        line["reason"] = attributes.pop("reason", None)
        for name in ("pid", "exit_code", "signal"):
            line[name] = attributes.get(name)
    if event.kind == "spawned":
        for name in ("class_name", "procs", "extent"):
            line[name] = attributes.get(name)
    if event.kind == "started":
        line["class_name"] = attributes.get("class_name")
    line["attributes"] = attributes_text(attributes)
    return "lifecycle", line


def _trace_context(span: SpanIdentity) -> dict[str, Any]:
    own, parent = span.context, span.parent
    context: dict[str, Any] = {"trace": own.trace_id, "span": own.span_id, "call": span.served_call}
    if parent is not None:
        context["parent"] = parent.span_id
    return context


def attributes_text(attributes: Mapping[str, Any] | None) -> str:
    """Encode attributes of any type as JSON.

    If the text is too long, it is replaced by a note of its length.
    """
    if not attributes:
        return "{}"
    text = ""
    # The program may modify them concurrently, and they may hold arbitrary objects.
    with suppress(Exception):
        text = json.dumps(dict(attributes), default=repr, separators=(",", ":"))
    if not text:
        with suppress(Exception):
            text = json.dumps({str(key): repr(value) for key, value in dict(attributes).items()})
    if not text or len(text) > _TEXT_LEN_MAX:
        return json.dumps({"left_out": f"{len(text)} characters of attributes"})
    return text


def encode_line(line: dict[str, Any]) -> bytes:
    """Encode a line, including its line feed."""
    return json.dumps(line, separators=(",", ":"), default=repr).encode() + b"\n"


def _truncated(text: str) -> str:
    if len(text) <= _TEXT_LEN_MAX:
        return text
    return f"{text[:_TEXT_LEN_MAX]} [cut: {len(text)} characters]"


def _error_text(error: BaseException) -> str:
    with suppress(Exception):
        text = str(error)
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return type(error).__name__


def _causes(error: BaseException) -> str:
    """Return the causes of an exception, nearest first, one per line."""
    lines: list[str] = []
    inner = error.__cause__ or error.__context__
    while inner is not None and len(lines) < _CAUSES_MAX:
        lines.append(_error_text(inner))
        inner = inner.__cause__ or inner.__context__
    return "\n".join(lines)
