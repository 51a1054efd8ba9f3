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
    """A job could not be taken over; the message contains the reason and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


def take_over(
    workers: Sequence[str], *, credentials: Credentials, gateway: str | None = None
) -> Job:
    """Take over a job whose program is lost, from the workers that keep it for a successor.

    The processes and actors of the job are unchanged, except that calls from the previous program
    were cancelled. This program now owns them: it is notified of their failures, applies their
    restart policies, prints their logs and stops them when it ends. The previous program, should it
    return, has no access to them any more. Everything in its own process, or on its own machine
    without a worker, is gone.

    A worker keeps a job only after the lease (`host_lease_s`) of the previous program has expired.
    Until then the request is repeated, for `attach_timeout_s`.

    Args:
        workers: The addresses of some workers of the job, of which at least one must be alive; the
            other workers are found through it. Successors that may run concurrently must pass them
            in the same order.
        credentials: The credentials of the job, with the role `controller`.
        gateway: The address of a worker that forwards connections to the others, if this program
            cannot reach them itself. By default, workers that are found through others are reached
            as the previous program did.

    Returns:
        The job, with handles of its meshes.

    Raises:
        TakeOverError: No worker keeps a job, its program is alive, or another successor was first.
        RuntimeError: This program already runs a job.
        ValueError: An address is malformed, or `workers` is empty.
        CredentialsError: The credentials have expired.
    """
    if isinstance(workers, str):
        raise ValueError(f"workers is a single string, {workers!r}: pass a list of addresses")
    # Imported here and below because most programs never take over, and importing Mesh must be
    # cheap.
    from mesh_core._hosts.address import Address

    addresses = [Address.parse_reachable(worker) for worker in workers]
    if not addresses:
        raise ValueError("no workers to take over: give at least one address")
    if current.is_running():
        raise RuntimeError(
            "this program already runs a job: take over before anything else, or after "
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
        # The workers keep the job again when the lease of this program has expired.
        runtime.places.forget()
        shut_down(0.0, is_failed=True)
        raise
