"""Taking over a job whose program is lost."""

from __future__ import annotations

from mesh_core._configuration.config import effective
from mesh_core._errors import MeshError
from mesh_core._program import runtime as current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._failover.job import Job
    from mesh_core._security.credentials import Credentials

__all__ = ["TakeOverError", "take_over"]


class TakeOverError(MeshError):
    """A job could not be taken over: the message says why, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


def take_over(
    workers: Sequence[str], *, credentials: Credentials, gateway: str | None = None
) -> Job:
    """Takes over a job whose program is lost, from the workers that hold it for a successor.

    Their processes and actors are as they were, but that the calls of the program before were
    cancelled. This program owns them now: it is told of their failures, restarts what has a policy,
    prints their logs, stops them when it ends. The program before, should it come back, can do
    nothing any more. What ran in its own process, or on its own machine without a worker, is gone.

    A worker holds a job when its lease (`host_lease_s`) is over; until then it is asked again, for
    `attach_timeout_s`.

    Args:
        workers: Where some workers of the job listen, one at least that lives; the others are
            found through it. Successors that may come at the same time must give them in the same
            order.
        credentials: Of the job, with the role `controller`.
        gateway: Where a worker listens that passes on what is sent to the others, when this program
            cannot reach them itself. Left out, workers that are found through others are reached as
            the program before did.

    Returns:
        The job, with handles of what it consists of.

    Raises:
        TakeOverError: No worker holds a job, its program lives, or another successor was first.
        RuntimeError: This program runs a job already.
        ValueError: An address is malformed, or there is none.
        CredentialsError: The credentials have expired.
    """
    if isinstance(workers, str):
        raise ValueError(f"workers is one string, {workers!r}: give a list of addresses")
    # Not at the top, here and below: most programs never do this, and importing is to be light.
    from mesh_core._hosts.address import Address

    addresses = [Address.parse_reachable(worker) for worker in workers]
    if not addresses:
        raise ValueError("no workers to take over: give at least one address")
    if current.is_running():
        raise RuntimeError(
            "this program runs a job already: take over before anything else, or after "
            "shutdown_context()"
        )
    from mesh_core._failover.claims import Claim
    from mesh_core._failover.succession import Succession
    from mesh_core._program.root import shut_down, start_root
    from mesh_core._security.credentials import CredentialsError
    from mesh_core._security.job_credentials import set_credentials

    way = None if gateway is None else Address.parse_reachable(gateway)
    config = effective()
    claim = Claim(credentials._keys, config.host_lease_s, way)
    try:
        first = claim.take_first(addresses, config.attach_timeout_s)
    except ValueError as error:
        raise CredentialsError(str(error)) from None
    start_root(first.grant.job, first.grant.token, first.grant.generation)
    runtime = current.runtime()
    try:
        set_credentials(runtime, credentials._keys)
        return Succession(runtime, claim, first, addresses, credentials._keys).run()
    except BaseException:
        # The workers hold the job again when the lease that we had is over.
        runtime.places.forget()
        shut_down(0.0, is_failed=True)
        raise
