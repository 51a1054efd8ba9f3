"""Taking over a job whose program is lost."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._failover.job import Job
    from mesh_core._security.credentials import Credentials

__all__ = ["take_over"]


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
        workers: The addresses of some workers of the job. At least one of them must be alive; the
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
    # Most programs never take over a job.
    from mesh_core._failover.failover import take_over_job  # noqa: PLC0415

    return take_over_job(workers, credentials, gateway)
