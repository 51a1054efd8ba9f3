"""A run as a sequence diagram: one line for each message and reply, one column for each actor."""

from __future__ import annotations

from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._schedules.events import Event
    from mesh_core._schedules.run import Failure

__all__ = ["mermaid", "sequence_diagram"]

_TEXT_LEN_MAX = 40
_MARGIN = 2
# Around the text of an arrow: the lifelines, a dash, two spaces, and a dash with the head.
_ARROW_LEN = 6


def sequence_diagram(events: Sequence[Event], failure: Failure) -> str:
    """Return a run as text.

    Args:
        events: The messages and replies, in the order in which they arrive.
        failure: How the run ends.
    """
    names = _names(events)
    widths = [len(name) for name in names]
    # The texts between two columns fit into the distance between the middles of the columns.
    gaps = [max(12, (one + other) // 2 + _MARGIN) for one, other in pairwise(widths)]
    for event in events:
        first, last = sorted((names.index(event.sender), names.index(event.actor.name)))
        if first == last:
            continue
        missing = len(_text(event)) + _ARROW_LEN - sum(gaps[first:last])
        if missing > 0:
            gaps[first] += missing
    middles = [widths[0] // 2 if widths else 0]
    for gap in gaps:
        middles.append(middles[-1] + gap)
    lines = [_heading(names, middles)]
    for event in events:
        lines.append(_line(event, names, middles))
    lines.append(_end(failure, names, middles))
    return "\n".join(line.rstrip() for line in lines)


def mermaid(events: Sequence[Event], failure: Failure) -> str:
    """Return a run in the language of Mermaid; see `sequence_diagram`."""
    names = _names(events)
    lines = ["sequenceDiagram"]
    lines += [f"    participant {_id(names, name)} as {_plain(name)}" for name in names]
    for event in events:
        arrow = "-->>" if event.is_reply else "->>"
        ends = f"{_id(names, event.sender)}{arrow}{_id(names, event.actor.name)}"
        lines.append(f"    {ends}: {_plain(_text(event))}")
    if names:
        over = _id(names, failure.actor) if failure.actor in names else _id(names, names[0])
        lines.append(f"    Note over {over}: {_plain(_failed(failure))}")
    return "\n".join(lines) + "\n"


def _names(events: Sequence[Event]) -> list[str]:
    """Return the columns: senders outside first, then actors in the order in which they appear."""
    actors = {event.actor.name for event in events}
    ends = [end for event in events for end in (event.sender, event.actor.name)]
    ordered = list(dict.fromkeys(ends))
    return [one for one in ordered if one not in actors] + [one for one in ordered if one in actors]


def _text(event: Event) -> str:
    text = " ".join(event.text.split())
    return text if len(text) <= _TEXT_LEN_MAX else f"{text[: _TEXT_LEN_MAX - 3]}..."


def _failed(failure: Failure) -> str:
    return " ".join(failure.text.split())


def _heading(names: Sequence[str], middles: Sequence[int]) -> str:
    line = ""
    for name, middle in zip(names, middles, strict=True):
        line = line.ljust(max(middle - len(name) // 2, 0)) + name
    return line


def _lifelines(middles: Sequence[int]) -> list[str]:
    line = [" "] * (middles[-1] + 1 if middles else 0)
    for middle in middles:
        line[middle] = "|"
    return line


def _line(event: Event, names: Sequence[str], middles: Sequence[int]) -> str:
    line = _lifelines(middles)
    source, target = middles[names.index(event.sender)], middles[names.index(event.actor.name)]
    first, last = sorted((source, target))
    if first == last:
        return "".join(line[: first + 1]) + f" {_text(event)}"
    dash = "." if event.is_reply else "-"
    for at in range(first + 1, last):
        line[at] = dash
    line[last - 1 if target > source else first + 1] = ">" if target > source else "<"
    text = f" {_text(event)} "
    start = first + 2
    line[start : start + len(text)] = list(text)
    return "".join(line)


def _end(failure: Failure, names: Sequence[str], middles: Sequence[int]) -> str:
    text = _failed(failure)
    if failure.actor not in names:
        return text
    middle = middles[names.index(failure.actor)]
    return "".join(_lifelines(middles)[:middle]) + f"X {text}"


def _id(names: Sequence[str], name: str) -> str:
    return f"p{names.index(name)}"


def _plain(text: str) -> str:
    # Mermaid takes `;` and `#` for syntax.
    return text.replace("#", "#35;").replace(";", "#59;")
