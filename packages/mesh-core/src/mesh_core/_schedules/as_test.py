"""A race as a test: a pytest file that runs recorded actors in many orders."""

from __future__ import annotations

from mesh_core._replay.as_test import write_test_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from mesh_core._schedules.search import FailingSchedule, ScheduleSearch

__all__ = ["write_schedule_test"]

_TEMPLATE = '''"""{title}"""

from pathlib import Path

from mesh_core.schedules import ScheduleSearch

CASE = Path(__file__).with_name({case!r})


def test_{name}() -> None:
    ScheduleSearch(CASE, trust=True{options}).check({count})
'''


def write_schedule_test(
    search: ScheduleSearch, found: FailingSchedule, count: int, folder: str
) -> Path:
    """Write a test that fails as the actors did, and passes once no order fails.

    Args:
        search: The actors.
        found: The order in which they fail.
        count: The number of orders that the test tries.
        folder: The directory of the test, which is created if it does not exist.

    Returns:
        The path of the test.

    Raises:
        OSError: The files cannot be written.
    """
    options = ", may_reorder=True" if search.may_reorder else ""
    return write_test_of(
        search.path,
        folder,
        f"order of messages: {found.reason}",
        lambda title, case, name: _TEMPLATE.format(
            title=f"Runs recorded actors in many orders; {title}",
            case=case,
            name=name,
            options=options,
            count=count,
        ),
    )
