"""Report that a program prints when an unhandled failure ends it.

The report starts with the traceback of the user's code, which a reader understands without knowing
Mesh. It continues with the failed actor, its location, the chain of causes, the end of the log, and
advice.
"""

from __future__ import annotations

from mesh_core._errors import ActorError, MeshError, ProcDied, SupervisionError, safe_str
from mesh_core._location import position_text
from mesh_core._serialization.traceback_text import format_user_traceback, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core._location import Where

__all__ = ["report"]

_CAUSES_MAX = 16
_RANKS_MAX = 8
_LINE_LEN_MAX = 400
_TO_DO = (
    "catch it around the call (try/except), define __supervise__ in the owner, "
    "or spawn with a restart strategy"
)


def report(failure: BaseException) -> str:
    """Format a failure for a reader who does not know Mesh; the text ends with a newline.

    Args:
        failure: The unhandled exception: an error of Mesh, or any other exception.
    """
    chain = list(_chain(failure))
    blocks = [_traceback(chain), _summary(chain), _log_tail(chain)]
    supervision = next((one for one in chain if isinstance(one, SupervisionError)), None)
    blocks.append(f"Hint: {_TO_DO if supervision is None else supervision.hint()}")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _chain(failure: BaseException) -> Iterator[BaseException]:
    """Iterate over a failure and its chain of causes."""
    seen: set[int] = set()
    current: BaseException | None = failure
    while current is not None and id(current) not in seen and len(seen) < _CAUSES_MAX:
        seen.add(id(current))
        yield current
        if current.__cause__ is not None or current.__suppress_context__:
            current = current.__cause__
        else:
            current = current.__context__


def _traceback(chain: list[BaseException]) -> str:
    """Return the traceback of user code that is nearest to the root cause."""
    for one in chain:
        if isinstance(one, ActorError) and one.exception_formatted:
            return one.exception_formatted.rstrip()
    # Format only the first of them, because its text includes the chain below it.
    theirs = next((one for one in chain if not isinstance(one, MeshError)), None)
    return "" if theirs is None else format_user_traceback(theirs).rstrip()


def _summary(chain: list[BaseException]) -> str:
    """Describe the failed actor, its location and the causes, one fact per line."""
    where = _where(chain)
    subject = "the program" if where is None else where.subject()
    facts = [] if where is None else list(_facts(where))
    for before, one in enumerate(chain):
        text = shorten(_one_line(one), _LINE_LEN_MAX)
        facts.append(("caused by" if before else "failure", text))
    facts.extend(_lost_actors(chain))
    facts.extend(_other_ranks(chain[0]))
    lines = [f"Unhandled failure of {subject}: the program exits."]
    lines.extend(f"  {name:<11}{value}" for name, value in facts)
    return "\n".join(lines)


def _where(chain: list[BaseException]) -> Where | None:
    """Return the location nearest to the root cause that contains any information."""
    found = None
    for one in chain:
        if isinstance(one, (ActorError, SupervisionError)) and (
            one.where.place() or one.where.actor or one.where.mesh_name
        ):
            found = one.where
    return found


def _facts(where: Where) -> Iterator[tuple[str, str]]:
    if where.rank is not None or where.point:
        point = ", ".join(f"{dim}={index}" for dim, index in (where.point or {}).items())
        rank = "" if where.rank is None else str(where.rank)
        yield "rank", f"{rank} ({point})".strip() if point else rank
    if where.host is not None:
        yield "host", str(where.host)
    process = [str(where.proc)] if where.proc is not None else []
    process += [f"pid {where.pid}"] if where.pid is not None else []
    if process:
        yield "process", ", ".join(process)
    if where.endpoint:
        yield "endpoint", where.endpoint


def _one_line(one: BaseException) -> str:
    """Format an exception in one line: its type and its message."""
    if isinstance(one, ActorError):
        return f"{type(one.exception).__qualname__}: {_first_line(one.__dict__['_mesh_message'])}"
    if isinstance(one, SupervisionError):
        return f"{type(one).__qualname__}: {one.where.subject()} {one.how()}"
    return f"{type(one).__qualname__}: {_first_line(safe_str(one))}"


def _lost_actors(chain: list[BaseException]) -> Iterator[tuple[str, str]]:
    """Name the actors of the first process in the chain that died."""
    died = next((one for one in chain if isinstance(one, ProcDied)), None)
    if died is not None:
        yield from (("actor lost", text) for text in died.lost_actors())


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _other_ranks(failure: BaseException) -> Iterator[tuple[str, str]]:
    if not isinstance(failure, MeshError):
        return
    others = [(place, other) for place, other in failure.failures if other is not failure]
    for place, other in others[:_RANKS_MAX]:
        yield position_text(place), shorten(_one_line(other), _LINE_LEN_MAX)
    if len(others) > _RANKS_MAX:
        yield "and", f"{len(others) - _RANKS_MAX} more ranks"


def _log_tail(chain: list[BaseException]) -> str:
    for one in chain:
        if isinstance(one, SupervisionError) and one.log_tail:
            lines = "\n".join(f"  | {line[:_LINE_LEN_MAX]}" for line in one.log_tail)
            return f"Last lines of its log:\n{lines}"
    return ""
