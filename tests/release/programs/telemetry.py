"""Queries the messages of the running program with SQL."""

from mesh_core import Actor, endpoint, this_host
from mesh_telemetry import Telemetry


class Worker(Actor):
    @endpoint
    def ping(self) -> None:
        """Do nothing."""


with Telemetry() as telemetry:
    workers = this_host().spawn_procs({"n": 2}).spawn("workers", Worker)
    workers.ping.call().get()
    found = telemetry.query("select count(*) as n from actors where class = 'Worker'")
    print(found.table.to_pylist())

# prints:
#   [{'n': 2}]
