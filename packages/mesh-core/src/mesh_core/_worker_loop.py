"""Serving this machine as a host: what programs and the command line call."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike

__all__ = ["run_worker_loop_forever", "run_worker_loop_until_shutdown"]


def run_worker_loop_forever(
    address: str,
    *,
    credentials: str | PathLike[str] | None = None,
    ca: str | None = None,
) -> None:
    """Serves this machine as a host, to one job after another, until it is told to end.

    SIGTERM and Ctrl-C end it in good order: the processes of the job are stopped first.

    Args:
        address: Where to listen, such as `tcp://127.0.0.1:26600`; port 0 lets the system choose.
        credentials: The folder with the worker's credentials, needed where other machines can reach
            the address.
        ca: Accepted for programs written for Monarch, where it must be `trust_all_connections`.

    Raises:
        ValueError: The address is malformed, or could be reached from other machines although
            there are no credentials.
        CredentialsError: The credentials are not there, or others can use them.
        OSError: The address is taken, or is none of this machine.
    """
    _serve(address, credentials, ca, until_shutdown=False)


def run_worker_loop_until_shutdown(
    address: str,
    *,
    credentials: str | PathLike[str] | None = None,
    ca: str | None = None,
) -> None:
    """As `run_worker_loop_forever`, but returns when the owner of a job shuts its hosts down.

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
    _serve(address, credentials, ca, until_shutdown=True)


def _serve(
    address: str, credentials: str | PathLike[str] | None, ca: str | None, *, until_shutdown: bool
) -> None:
    # Not at the top: most programs serve no machine, and importing Mesh is to be light.
    from mesh_core._worker import Worker, run

    if ca not in (None, "trust_all_connections"):
        raise ValueError(f"ca {ca!r} is not known: leave it out")
    run(Worker(address, credentials), until_shutdown=until_shutdown)
