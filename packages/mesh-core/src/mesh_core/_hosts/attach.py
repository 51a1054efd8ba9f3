"""Adding workers to the job as hosts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from mesh_core._meshes.host_mesh import HostMesh
    from mesh_core._security.credentials import Credentials

__all__ = ["add_standby_workers", "attach", "attach_to_workers"]


def attach(gateway: str) -> None:
    """Set the gateway for all workers to which this program attaches from now on.

    A gateway is for a program that cannot reach the other workers itself, for example from outside
    the network of a cluster. The call has the same effect as `gateway` in each `attach_to_workers`.

    Args:
        gateway: The address of the worker that forwards connections, such as
            `tcp://login.example.org:26600`.

    Raises:
        ValueError: The address is malformed.
    """
    _attachment().set_gateway(gateway)


def attach_to_workers(
    workers: Sequence[str],
    *,
    credentials: Credentials | None = None,
    name: str | None = None,
    gateway: str | None = None,
    ca: str | None = None,
    standby: int = 0,
    orphan_grace_s: float = 0.0,
    observer: bool = False,
    worker_ids: Sequence[str] = (),
) -> HostMesh:
    """Add workers to the job as its hosts, and return before they have replied.

    If a worker is not running yet, or is still ending another job, the request is repeated for
    `attach_timeout_s`. If a host cannot be attached, calls that wait for it raise `HostDied` with
    the reason.

    Args:
        workers: The addresses of the workers, such as `tcp://node7:26600`; each becomes one host.
        credentials: The credentials of the job; required for workers on other machines. A program
            has only one set. Default: the credentials that all programs of the user share, see
            `Credentials.local`.
        name: The name of the dimension. Default: `hosts`.
        gateway: The address of a worker that forwards connections to the others, which this program
            cannot reach itself. It resolves their names, cannot read the forwarded data, and may
            be one of `workers`.
        ca: Accepted for programs written for Monarch, in which case it must be
            `trust_all_connections`.
        standby: The number of workers, counted from the end, that are reserved as standby workers
            to replace hosts that die.
        orphan_grace_s: The orphan grace period in seconds: how long the workers keep the processes
            of this program, after it is lost, for a successor that calls `take_over`. Requires
            credentials. With 0 the processes end immediately.
        observer: Whether to open an additional session on each worker, separate from the program
            that it serves now or later, and leave the worker available to others; for example to
            inspect the hosts of a running job. Each worker then listens on one more port.
        worker_ids: The ids of the only acceptable worker processes, from an earlier
            `HostMesh.worker_ids`. Each worker then gets a single request: a worker that is not
            running or serves another program is lost immediately.

    Returns:
        A mesh of shape `{hosts: len(workers) - standby}`, in the order of `workers`.

    Raises:
        ValueError: `workers` is empty, `standby` leaves no host, an address is malformed or occurs
            twice, credentials are missing for another machine or for `orphan_grace_s`, `observer`
            is combined with `standby` or `orphan_grace_s`, or `worker_ids` is combined with
            `standby` or has another length than `workers`.
        CredentialsError: The credentials have expired, or the user has no usable credentials.
    """
    if ca not in (None, "trust_all_connections"):
        raise ValueError(f"ca {ca!r} is not known: leave it out")
    hosts: HostMesh = _attachment().attach_workers(
        workers,
        credentials=credentials,
        name=name,
        gateway=gateway,
        standby=standby,
        orphan_grace_s=orphan_grace_s,
        observer=observer,
        worker_ids=worker_ids,
    )
    return hosts


def add_standby_workers(hosts: HostMesh, workers: Sequence[str] | HostMesh) -> None:
    """Reserve more workers to replace hosts that die, like the workers of `standby=`.

    For example, a machine that was replaced and is available again can become a standby worker. A
    worker does not have to be reachable yet. The workers use the credentials, the gateway and the
    configuration of the hosts.

    Args:
        hosts: Hosts to which this program is attached.
        workers: The addresses of the workers; or hosts to which this program is attached, such as a
            mesh of a job. Their processes are stopped.

    Raises:
        ValueError: An address is malformed, is already a standby worker or a living host, or these
            hosts were not attached by this program.
    """
    _attachment().add_standby_workers(hosts, workers)


def _attachment() -> ModuleType:
    """Import the implementation, which most programs never need, on first use."""
    from mesh_core._hosts import attachment  # noqa: PLC0415

    return attachment
