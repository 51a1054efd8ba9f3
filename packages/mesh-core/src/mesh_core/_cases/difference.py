"""The differences of two cases of the same class."""

from __future__ import annotations

from itertools import zip_longest
from typing import NamedTuple

from mesh_core._cases.case import Omitted
from mesh_core._cases.entry_text import actor_name, format_ranks, format_read
from mesh_core._cases.errors import CaseError
from mesh_core._cases.escape import escape, shorten
from mesh_core._cases.render import Renderer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from mesh_core._cases.case import Case, Entry, RecordedActor

    Payloads = tuple[bytes | Omitted, ...]

__all__ = ["difference_lines"]

_TEXT_LEN_MAX = 1_000
# Calls that an actor makes outside of a message are compared before its messages.
_OUTSIDE = -1
# The text that `Renderer` writes for a class of the main script.
_CLASS_MARK = "pickled by value"
_STEP_ORDER = {"message": 0, "call": 1, "reply": 1, "timeout": 1, "outcome": 2}


class _Step(NamedTuple):
    """One thing that is compared.

    Attributes:
        order: The position among the steps of a message.
        what: The event as text, without the payloads.
        secret: A value that is compared but not shown.
        payloads: The payloads.
        form: How the payloads are rendered: `arguments` or `value`.
    """

    order: tuple[int, ...]
    what: str
    payloads: Payloads
    form: str
    secret: str = ""


class _Recording:
    """The actor of a case that is compared.

    Attributes:
        label: The name of the case in the output.
        actor: The actor that failed, or the first one.
        steps: The steps of each message, by its number.
    """

    def __init__(self, label: str, case: Case) -> None:
        if not case.actors:
            raise CaseError(f"the case {label} has no actors: pass a case with a recorded actor")
        self.label = label
        self.actor: RecordedActor = case.actors[case.failed or 0]
        self._renderer = Renderer()
        self.steps = _steps(self.actor)

    def describe(self, step: _Step | None) -> str:
        """Return the text of a step."""
        if step is None:
            return "nothing"
        what = escape(shorten(step.what, _TEXT_LEN_MAX))
        payloads = self.render(step)
        return f"{what}({payloads})" if step.form == "arguments" else f"{what} {payloads}".rstrip()

    def render(self, step: _Step) -> str:
        """Return the text of the payloads of a step."""
        if not step.payloads:
            return ""
        if step.form == "arguments":
            return self._renderer.arguments(step.payloads)
        return self._renderer.value(step.payloads)

    def constructor(self) -> str:
        """Return the arguments of `__init__`."""
        first = self.actor.entries[0] if self.actor.entries else None
        if first is None or first.kind != "begin" or not first.payloads:
            return "not recorded"
        return self._renderer.constructor_arguments(first.payloads)


def difference_lines(case: Case, other: Case, labels: tuple[str, str]) -> list[str]:
    """Return the differences of two cases.

    The times that an actor reads always differ and are not compared.

    Args:
        case: A case.
        other: A case whose actor has the same class.
        labels: The names of both.

    Raises:
        CaseError: The classes of the failed actors differ.
    """
    left, right = _Recording(labels[0], case), _Recording(labels[1], other)
    if left.actor.class_name != right.actor.class_name:
        classes = f"{left.actor.class_name} and {right.actor.class_name}"
        raise CaseError(f"the cases are of different classes, {classes}: pass cases of one class")
    lines = [
        f"{escape(one.label)}: {actor_name(one.actor)}, {len(one.actor.entries)} entries"
        for one in (left, right)
    ]
    lines += _changes("version of", case.versions, other.versions)
    lines += _changes("SHA-256 of module", _hashes(case), _hashes(other))
    # The values may be secrets.
    names = sorted(
        name
        for name in case.environ.keys() | other.environ.keys()
        if case.environ.get(name) != other.environ.get(name)
    )
    if names:
        lines.append(f"different environment variables: {_text(', '.join(names))}")
    texts = (left.constructor(), right.constructor())
    if texts[0] != texts[1]:
        lines.append("different arguments of the constructor:")
        lines += _both(left, right, texts)
    return lines + _first_difference(left, right)


def _first_difference(left: _Recording, right: _Recording) -> list[str]:
    """Return the first step that differs, among the messages that both may contain."""
    numbers = sorted(left.steps.keys() | right.steps.keys())
    start = max(_kept_from(left), _kept_from(right))
    compared = [number for number in numbers if number >= start or number == _OUTSIDE]
    for number in compared:
        where = "outside of messages" if number == _OUTSIDE else f"in message #{number}"
        pairs = zip_longest(left.steps.get(number, []), right.steps.get(number, []))
        for one, another in pairs:
            if one is not None and another is not None and _are_equal(left, one, right, another):
                continue
            texts = (left.describe(one), right.describe(another))
            lines = [f"first difference, {where}:", *_both(left, right, texts)]
            if texts[0] == texts[1]:
                lines.append("  (equal as text, but the encoded values differ)")
            return lines
    if not compared and numbers:
        return ["the cases have no message number in common"]
    return [f"no difference in {len(compared)} message{'' if len(compared) == 1 else 's'}"]


def _are_equal(left: _Recording, one: _Step, right: _Recording, another: _Step) -> bool:
    if (one.what, one.form, one.secret) != (another.what, another.form, another.secret):
        return False
    if len(one.payloads) != len(another.payloads):
        return False
    pairs = zip(one.payloads, another.payloads, strict=True)
    different = [index for index, pair in enumerate(pairs) if not _may_equal(*pair)]
    if different != [0] or len(one.payloads) > 1:
        return not different
    # The encoding of a class of the main script differs in each run, so the bodies may be equal.
    text = left.render(one)
    return _CLASS_MARK in text and not text.endswith("...") and text == right.render(another)


def _may_equal(one: bytes | Omitted, another: bytes | Omitted) -> bool:
    """Return whether payloads are equal, as far as they are known."""
    if isinstance(one, Omitted) or isinstance(another, Omitted):
        return _len(one) == _len(another)
    return one == another


def _len(payload: bytes | Omitted) -> int:
    return payload.length if isinstance(payload, Omitted) else len(payload)


def _steps(actor: RecordedActor) -> dict[int, list[_Step]]:
    steps: dict[int, list[_Step]] = {}
    served_by_call: dict[int, int] = {}
    for entry in actor.entries:
        fields = entry.fields
        if entry.kind == "call":
            served_by_call[fields["k"]] = _number(fields["n"])
        if entry.kind in ("reply", "timeout"):
            if fields["k"] not in served_by_call:
                continue  # its call was evicted
            number = served_by_call[fields["k"]]
        elif entry.kind in _STEP_ORDER or entry.kind == "read":
            number = _number(fields["n"])
        else:
            continue
        if entry.kind != "read" or fields["source"] != "time":
            steps.setdefault(number, []).append(_step(entry))
    for of_message in steps.values():
        # Replies arrive in any order.
        of_message.sort(key=lambda step: step.order)
    return steps


def _step(entry: Entry) -> _Step:
    fields, payloads = entry.fields, entry.payloads
    if entry.kind == "read":
        # Reads keep their order, before the calls.
        return _Step((0, 1), f"read of {format_read(entry)}", (), "value", repr(fields["value"]))
    order = _STEP_ORDER[entry.kind]
    if entry.kind == "message":
        return _Step((order,), fields["endpoint"], payloads, "arguments")
    if entry.kind == "call":
        what = f"call on {format_ranks(fields['ranks'])}: {fields['mesh']}.{fields['endpoint']}"
        return _Step((order, fields["k"]), what, payloads, "arguments")
    if entry.kind == "reply":
        what = f"reply of rank {fields['rank']}"
        what += f" with code {fields['code']}" if fields["code"] else ""
        return _Step((order, fields["k"], 1, fields["rank"]), what, payloads, "value")
    if entry.kind == "timeout":
        return _Step((order, fields["k"], 0), "timeout of the call", (), "value", fields["error"])
    what = f"outcome {fields['status']} {fields.get('error') or ''}"
    return _Step((order,), what.rstrip(), payloads, "value")


def _kept_from(recording: _Recording) -> int:
    """Return the number of the first message that the recording is known to contain."""
    if not recording.actor.evicted:
        return 0
    messages = (one.fields["n"] for one in recording.actor.entries if one.kind == "message")
    return min(messages, default=0)


def _number(n: int | None) -> int:
    return _OUTSIDE if n is None else n


def _hashes(case: Case) -> dict[str, str]:
    return {name: module.get("sha256", "unknown") for name, module in case.modules.items()}


def _changes(what: str, left: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
    return [
        f"{what} {_text(name)}: {_text(left.get(name, 'none'))} | {_text(right.get(name, 'none'))}"
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    ]


def _both(left: _Recording, right: _Recording, texts: tuple[str, str]) -> list[str]:
    return [
        f"  {escape(one.label)}: {text}" for one, text in zip((left, right), texts, strict=True)
    ]


def _text(text: str) -> str:
    return escape(shorten(text, _TEXT_LEN_MAX))
