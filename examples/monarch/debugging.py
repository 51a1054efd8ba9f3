"""Pause actors on all ranks at a breakpoint, inspect them, and let them continue.

While the program waits, `mesh debug list`, `mesh debug cast` and `mesh debug attach` do in a shell
what the second half of this program does with `Telemetry.debug`. One rank fails after its
breakpoint; `debug_on_failure` keeps it paused at the line that raised the exception.
"""

from typing import Any

from mesh_core import Actor, current_rank, endpoint, this_host
from mesh_core.testing import wait_until
from mesh_telemetry import Telemetry

RANKS, BAD_RANK = 4, 2


def share_of(rank: int) -> int:
    if rank == BAD_RANK:
        raise ValueError("bad rank")
    return rank * rank


class Worker(Actor):
    @endpoint
    def work(self) -> int:
        rank = current_rank().rank
        breakpoint()
        return share_of(rank)


def paused(kind: str, count: int) -> list[dict[str, Any]]:
    """Wait for sessions of this kind, and return them in the order of their ranks."""

    def found() -> list[dict[str, Any]]:
        return [one for one in telemetry.debug_sessions() if one["kind"] == kind]

    wait_until(lambda: len(found()) == count, 60)
    return sorted(found(), key=lambda one: one["rank"])


with Telemetry() as telemetry:
    telemetry.serve()  # the server to which `mesh debug` connects
    telemetry.debug_on_failure("workers")
    workers = this_host().spawn_procs({"hosts": 2, "gpus": 2}).spawn("workers", Worker)
    work = workers.work.options(return_exceptions=True).call()

    for session in paused("breakpoint", RANKS):
        with telemetry.debug(session["id"]) as console:
            print(f"rank {session['rank']} pauses in {session['function']}:", end=" ")
            print("rank =", console.run("p rank").strip())
            if session["rank"] == 1:
                console.run("!rank = 10")  # changes what the endpoint returns
            console.run("c")

    (failed,) = paused("post_mortem", 1)
    with telemetry.debug(failed["id"]) as console:
        print(f"rank {failed['rank']} failed, with rank =", console.run("p rank").strip())

    print([repr(outcome) for outcome in work.get(60).values()])

# prints:
#   rank 0 pauses in Worker.work: rank = 0
#   rank 1 pauses in Worker.work: rank = 1
#   rank 2 pauses in Worker.work: rank = 2
#   rank 3 pauses in Worker.work: rank = 3
#   rank 2 failed, with rank = 2
#   ['0', '100', "...ValueError...", '9']
