"""A saved case in a list of cases: its manifest, and the number of messages of its actor."""

from __future__ import annotations

import os
from typing import NamedTuple

from mesh_core._cases.case_file import read_case, read_message_count, read_summary
from mesh_core._cases.case_text import ENTRIES_SHOWN_MAX, Selection, case_lines, select_actors
from mesh_core._cases.errors import CaseError
from mesh_core._cases.escape import escape, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SavedCase", "case_report", "read_saved_case"]

# A report is built in the memory of a running program, which must not suffer from it.
_REPORT_CONTENT_LEN_MAX = 64 << 20
_REASON_LEN_MAX = 2_000
_NAME_LEN_MAX = 200


class SavedCase(NamedTuple):
    """A case in a list. All texts are printable.

    Attributes:
        path: The file.
        saved_ns: When the case was saved, in nanoseconds since the epoch; for a file that is not a
            valid case, when the file was changed.
        size: The length of the file in bytes.
        job: The id of the job as 32 hexadecimal digits.
        actor: The actor that failed, as `mesh[rank]`.
        host: The host name of the machine of the actor.
        failure: The exception, or how the actor or its process failed.
        message_count: The number of messages of the actor in the case; None if its entries are too
            long to be counted for a list.
        error: Why the file cannot be read, or empty. The fields from `job` on are empty then.
    """

    path: Path
    saved_ns: int
    size: int
    job: str = ""
    actor: str = ""
    host: str = ""
    failure: str = ""
    message_count: int | None = None
    error: str = ""


def read_saved_case(path: Path, status: os.stat_result) -> SavedCase:
    """Describe a file, without decoding any payload.

    Args:
        path: The file.
        status: The status of the file.
    """
    try:
        summary = read_summary(path)
        count = read_message_count(path)
    except CaseError as error:
        text = escape(shorten(str(error), _REASON_LEN_MAX))
        return SavedCase(path, status.st_mtime_ns, status.st_size, error=text)
    case = summary.case
    failed = case.actors[case.failed or 0] if case.actors else None
    name = "" if failed is None else f"{failed.mesh}[{failed.rank}]"
    return SavedCase(
        path=path,
        saved_ns=case.created_ns,
        size=summary.file_len,
        job=case.job.hex(),
        actor=escape(shorten(name, _NAME_LEN_MAX)),
        host="" if failed is None else escape(shorten(failed.host, _NAME_LEN_MAX)),
        failure=escape(shorten(case.reason.removeprefix(f"{name}: "), _REASON_LEN_MAX)),
        message_count=count,
    )


def case_report(path: Path) -> str:
    """Return the text that `python -m mesh_core.case show` prints, without decoding any payload.

    Raises:
        CaseError: The file cannot be read, or is too long to be read by a running program.
    """
    length = read_summary(path).content_len
    if length > _REPORT_CONTENT_LEN_MAX:
        message = (
            f"the case {path} has {length} bytes, and a program shows at most "
            f"{_REPORT_CONTENT_LEN_MAX}: run python -m mesh_core.case show {path}"
        )
        raise CaseError(message, os.fspath(path))
    case = read_case(path)
    return "\n".join(case_lines(case, Selection(select_actors(case, None), ENTRIES_SHOWN_MAX)))
