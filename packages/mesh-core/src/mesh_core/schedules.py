"""Other orders of recorded messages: `python -m mesh_core.schedules CASE --trust`.

Actors that fail rarely often depend on the order in which messages arrive. This module runs the
actors of a case together in one process, in as many orders as you like, and prints the shortest one
in which they fail. It executes code and opens pickles that the case contains: use it only for cases
that you trust.
"""

from mesh_core._schedules.command import main as _main
from mesh_core._schedules.search import FailingSchedule as FailingSchedule
from mesh_core._schedules.search import ScheduleSearch as ScheduleSearch

if __name__ == "__main__":
    raise SystemExit(_main())
