"""Functions that serve this machine as a host, for programs and the command line."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike

    from mesh_core._calls.future import Future
    from mesh_core._workers.worker import Worker

__all__ = [
    "run_worker",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "start_worker_loop_forever",
]


def run_worker(
    address: str,
    *,
    credentials: str | PathLike[str] | None = None,
    until_shutdown: bool = False,
    leave_grace_s: float = 0.0,
) -> None:
    """Serve this machine as a host, to one job after another, until a signal.

    SIGTERM and Ctrl-C end the worker in an orderly way: it stops the processes of the job first.
    The owner of the job can stop them itself within `leave_grace_s`; the worker ends as soon as
    none is left.

    Args:
        address: The address to listen on, such as `tcp://127.0.0.1:26600`; port 0 lets the system
            select one. `fd://3` is a listening socket that this process has inherited. With
            `DIAL@BIND`, clients use the first address, and the worker listens on the second.
        credentials: The folder with the worker's credentials, required if other machines can reach
            the address.
        until_shutdown: Whether to return also after the owner of a job has shut down its hosts.
        leave_grace_s: Seconds that the processes of the job continue after a signal.

    Raises:
        ValueError: The address is malformed, or other machines could reach it without credentials.
        CredentialsError: The credentials do not exist, or other users can access them.
        OSError: The address is in use, or does not belong to this machine.
    """
    _worker(address, credentials, None, leave_grace_s).run(until_shutdown=until_shutdown)


def run_worker_loop_forever(
    address: str,
    *,
    credentials: str | PathLike[str] | None = None,
    ca: str | None = None,
    leave_grace_s: float = 0.0,
) -> None:
    """Serve this machine as a host until a signal, as `mesh_core.run_worker` does.

    Args:
        address: The address to listen on.
        credentials: The folder with the worker's credentials.
        ca: Accepted for programs written for Monarch, in which case it must be
            `trust_all_connections`.
        leave_grace_s: Seconds that the processes of the job continue after a signal.

    Raises:
        ValueError: The address is malformed, or other machines could reach it without credentials.
        CredentialsError: The credentials do not exist, or other users can access them.
        OSError: The address is in use, or does not belong to this machine.
    """
    _worker(address, credentials, ca, leave_grace_s).run(until_shutdown=False)


def run_worker_loop_until_shutdown(
    address: str,
    *,
    credentials: str | PathLike[str] | None = None,
    ca: str | None = None,
    leave_grace_s: float = 0.0,
) -> None:
    """Serve like `run_worker_loop_forever`, until the owner of a job shuts down its hosts.

    Args:
        address: The address to listen on.
        credentials: The folder with the worker's credentials.
        ca: Accepted for programs written for Monarch.
        leave_grace_s: Seconds that the processes of the job continue after a signal.

    Raises:
        ValueError: The address is malformed, or other machines could reach it without credentials.
        CredentialsError: The credentials do not exist, or other users can access them.
        OSError: The address is in use, or does not belong to this machine.
    """
    _worker(address, credentials, ca, leave_grace_s).run(until_shutdown=True)


def start_worker_loop_forever(
    address: str,
    *,
    credentials: str | PathLike[str] | None = None,
    ca: str | None = None,
) -> Future[None]:
    """Serve like `run_worker_loop_forever`, concurrently with the program.

    The worker listens when this returns. Cancelling the future ends it in an orderly way; it also
    ends with the program.

    Args:
        address: The address to listen on.
        credentials: The folder with the worker's credentials.
        ca: Accepted for programs written for Monarch.

    Raises:
        ValueError: The address is malformed, or other machines could reach it without credentials.
        CredentialsError: The credentials do not exist, or other users can access them.
        OSError: The address is in use, or does not belong to this machine.
    """
    return _worker(address, credentials, ca, 0.0).serve_concurrently()


def _worker(
    address: str, credentials: str | PathLike[str] | None, ca: str | None, leave_grace_s: float
) -> Worker:
    if ca not in (None, "trust_all_connections"):
        raise ValueError(f"ca {ca!r} is not known: leave it out")
    # Most programs do not serve a machine.
    from mesh_core._workers.worker import Worker  # noqa: PLC0415

    return Worker(address, credentials, leave_grace_s)
