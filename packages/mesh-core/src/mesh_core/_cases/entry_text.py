"""The entries of an actor as lines for people."""

from __future__ import annotations

from mesh_core._cases.escape import escape, shorten
from mesh_core._cases.render import Renderer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._cases.case import Entry, RecordedActor

__all__ = ["EntryLines", "actor_name", "format_call", "format_ranks", "format_read"]

ERROR_LEN_MAX = 2_000
_NAME_LEN_MAX = 200
_RANKS_SHOWN_MAX = 8


class EntryLines:
    """Formats the entries of one actor in their order.

    Calls, reads and outcomes are indented below their message. They have its number if another
    message was served in between.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._current: int | None = None
        self._served_by_call: dict[int, int | None] = {}

    def format(self, entry: Entry) -> list[str]:
        """Return the lines of an entry."""
        formats: dict[str, Callable[[Entry], list[str]]] = {
            "begin": self._begin,
            "message": self._message,
            "outcome": self._outcome,
            "call": self._call,
            "reply": self._reply,
            "timeout": self._timeout,
            "received": self._received,
            "read": self._read,
            "failed": self._failed,
        }
        return formats[entry.kind](entry)

    def _begin(self, entry: Entry) -> list[str]:
        cls = _name(entry.fields["class"].rpartition(":")[2])
        text = self._renderer.constructor_arguments(entry.payloads) if entry.payloads else ""
        extent = ", ".join(f"{_name(dim)}={n}" for dim, n in entry.fields["extent"].items())
        return [f"{cls}({text}) as rank {entry.fields['rank']} of ({extent})"]

    def _message(self, entry: Entry) -> list[str]:
        fields = entry.fields
        self._current = fields["n"]
        call = format_call(entry, self._renderer)
        one_way = "" if fields["replies"] else ", without a reply"
        return [f"#{fields['n']} {call} from {_name(fields['from'])}{one_way}"]

    def _outcome(self, entry: Entry) -> list[str]:
        fields, status = entry.fields, entry.fields["status"]
        if status == "value":
            text = "returned"
            if entry.payloads:
                text += f" {self._renderer.value(entry.payloads)}"
        elif status == "raised":
            text = f"raised {_error(fields.get('error'))}"
        else:
            text = "was cancelled"
        return [f"  #{fields['n']} {text}"]

    def _call(self, entry: Entry) -> list[str]:
        fields = entry.fields
        self._served_by_call[fields["k"]] = fields["n"]
        call = format_call(entry, self._renderer)
        ranks = format_ranks(fields["ranks"])
        return [f"  {self._of(fields['n'])}calls {_name(fields['mesh'])}.{call} on {ranks}"]

    def _reply(self, entry: Entry) -> list[str]:
        fields = entry.fields
        of = self._of(self._served_by_call.get(fields["k"], self._current))
        if fields["code"]:
            traceback = self._renderer.traceback(entry.payloads)
            text = f"failed with code {fields['code']}"
            text += f": {_error(traceback.rpartition(chr(10))[2])}" if traceback else ""
        else:
            text = "replied"
            if entry.payloads:
                text += f" {self._renderer.value(entry.payloads)}"
        return [f"    {of}rank {fields['rank']} {text}"]

    def _timeout(self, entry: Entry) -> list[str]:
        of = self._of(self._served_by_call.get(entry.fields["k"], self._current))
        return [f"    {of}waited long enough: {_error(entry.fields['error'])}"]

    def _received(self, entry: Entry) -> list[str]:
        fields = entry.fields
        what = f"failure with code {fields['code']}" if fields["code"] else "value"
        shown = "" if fields["code"] else f" {self._renderer.value(entry.payloads)}"
        return [f"    channel {fields['c']} received a {what}{shown} from {_name(fields['from'])}"]

    def _read(self, entry: Entry) -> list[str]:
        return [f"  {self._of(entry.fields['n'])}reads {format_read(entry)}"]

    def _failed(self, entry: Entry) -> list[str]:
        lines = [f"failed: {_error(entry.fields['error'])}"]
        if entry.payloads and (traceback := self._renderer.traceback(entry.payloads)):
            lines += [f"  {line}" for line in traceback.split("\n")]
        return lines

    def _of(self, number: int | None) -> str:
        """Return the prefix with the number of a message that is not the current one."""
        if number == self._current:
            return ""
        return "outside of messages: " if number is None else f"#{number} "


def actor_name(actor: RecordedActor) -> str:
    """Return the name of an actor, as `mesh[rank]`."""
    return f"{_name(actor.mesh)}[{actor.rank}]"


def format_call(entry: Entry, renderer: Renderer) -> str:
    """Return the endpoint and the arguments of an entry of kind `message` or `call`."""
    return f"{_name(entry.fields['endpoint'])}({renderer.arguments(entry.payloads)})"


def format_read(entry: Entry) -> str:
    """Return the text of an entry of kind `read`, without the value of an environment variable."""
    fields = entry.fields
    key = "" if fields["key"] is None else f" {_name(fields['key'])}"
    if fields["source"] == "environ":
        value = "not set" if fields["value"] is None else "set"
    else:
        value = escape(shorten(repr(fields["value"]), _NAME_LEN_MAX))
    return f"{fields['source']}{key}: {value}"


def format_ranks(ranks: list[int]) -> str:
    """Return the ranks of a call as text."""
    if len(ranks) > _RANKS_SHOWN_MAX:
        return f"{len(ranks)} ranks"
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks)) or 'none'}"


def _name(text: str) -> str:
    return escape(shorten(text, _NAME_LEN_MAX))


def _error(text: str | None) -> str:
    return "an exception" if not text else escape(shorten(text, ERROR_LEN_MAX))
