"""Workers on the hosts of a world, and programs that attach them to a job."""

from tests.hosts.crew.crew import Crew as Crew
from tests.hosts.crew.crew import Worker as Worker
from tests.hosts.crew.program import Program as Program
