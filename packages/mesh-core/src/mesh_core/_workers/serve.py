"""Serving this machine as a host: what programs and the command line call."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike

    from mesh_core._calls.future import Future
    from mesh_core._workers.worker import Worker

__all__ = [
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "start_worker_loop_forever",
]


def run_worker_loop_forever(
    address: str,
    *,
    credentials: str | PathLike[str] | None = None,
    ca: str | None = None,
    leave_grace_s: float = 0.0,
) -> None:
    """Serves this machine as a host, to one job after another, until it is told to end.

    SIGTERM and Ctrl-C end it in good order: the processes of the job are stopped first. The owner
    of the job can stop them itself within `leave_grace_s`; the worker ends once none is left.

    Args:
        address: Where to listen, such as `tcp://127.0.0.1:26600`; port 0 lets the system choose.
        credentials: The folder with the worker's credentials, needed where other machines can reach
            the address.
        ca: Accepted for programs written for Monarch, where it must be `trust_all_connections`.
        leave_grace_s: After a signal, how many seconds the processes of the job go on.

    Raises:
        ValueError: The address is malformed, or could be reached from other machines although
            there are no credentials.
        CredentialsError: The credentials are not there, or others can use them.
        OSError: The address is taken, or is none of this machine.
    """
    _serve(address, credentials, ca, leave_grace_s, until_shutdown=False)


def run_worker_loop_until_shutdown(
    address: str,
    *,
    credentials: str | PathLike[str] | None = None,
    ca: str | None = None,
    leave_grace_s: float = 0.0,
) -> None:
    """As `run_worker_loop_forever`, but returns when the owner of a job shuts its hosts down.

    Args:
        address: Where to listen.
        credentials: The folder with the worker's credentials.
        ca: Accepted for programs written for Monarch.
        leave_grace_s: After a signal, how many seconds the processes of the job go on.

    Raises:
        ValueError: The address is malformed, or could be reached from other machines although
            there are no credentials.
        CredentialsError: The credentials are not there, or others can use them.
        OSError: The address is taken, or is none of this machine.
    """
    _serve(address, credentials, ca, leave_grace_s, until_shutdown=True)


def start_worker_loop_forever(
    address: str,
    *,
    credentials: str | PathLike[str] | None = None,
    ca: str | None = None,
) -> Future[None]:
    """As `run_worker_loop_forever`, beside whatever else the program does.

    It listens when this returns. Cancelling the future ends it in good order; it ends with the
    program, too.

    Args:
        address: Where to listen.
        credentials: The folder with the worker's credentials.
        ca: Accepted for programs written for Monarch.

    Raises:
        ValueError: The address is malformed, or could be reached from other machines although
            there are no credentials.
        CredentialsError: The credentials are not there, or others can use them.
        OSError: The address is taken, or is none of this machine.
    """
    from mesh_core._actors.own_thread import run_beside
    from mesh_core._calls.coroutine_future import run_async
    from mesh_core._calls.event_loop import loop_thread

    worker = _worker(address, credentials, ca, 0.0)

    async def serve() -> None:
        try:
            await run_beside(worker.serve)
        finally:
            await run_beside(worker.end)

    return run_async(loop_thread(), serve())


def _serve(
    address: str,
    credentials: str | PathLike[str] | None,
    ca: str | None,
    leave_grace_s: float,
    *,
    until_shutdown: bool,
) -> None:
    from mesh_core._workers.worker import run

    run(_worker(address, credentials, ca, leave_grace_s), until_shutdown=until_shutdown)


def _worker(
    address: str, credentials: str | PathLike[str] | None, ca: str | None, leave_grace_s: float
) -> Worker:
    # Not at the top: most programs serve no machine, and importing Mesh is to be light.
    from mesh_core._workers.worker import Worker

    if ca not in (None, "trust_all_connections"):
        raise ValueError(f"ca {ca!r} is not known: leave it out")
    return Worker(address, credentials, leave_grace_s)
