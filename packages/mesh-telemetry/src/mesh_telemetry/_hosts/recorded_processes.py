"""Waits until existing processes are recorded."""

from __future__ import annotations

import time
from contextlib import suppress

from mesh_core import ActorError, MeshError, SupervisionError
from mesh_telemetry._errors import TelemetryError, cause_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from mesh_core import Future, ProcMesh
    from mesh_telemetry._hosts.coordinator import Coordinator

__all__ = ["watch_until_recorded"]

_CAUSES_MAX = 3
_REPORT_TIMEOUT_S = 5.0


def watch_until_recorded(coordinator: Coordinator, procs: ProcMesh, timeout_s: float) -> None:
    """Start recording processes, and wait until all of them are recorded.

    The wait takes place in the caller, so that the coordinator can serve other requests.

    Raises:
        TelemetryError: Some processes are not recorded, or not in time.
    """
    deadline = time.monotonic() + timeout_s
    try:
        found = coordinator.watch.call_one(procs).get(timeout_s)
        started = [(number, collectors.initialized) for number, collectors in found]
        failures = _failures(started, deadline)
    except TimeoutError:
        raise TelemetryError(
            f"{procs} has processes that are not recorded after {timeout_s:g} s: check them and "
            "call watch again, or increase the timeout"
        ) from None
    except MeshError as error:
        raise _not_recorded(procs, [cause_of(error)]) from error
    if not failures:
        return
    lost = [
        (number, failure.where.rank)
        for number, failure in failures
        if isinstance(failure, SupervisionError) and failure.where.rank is not None
    ]
    # The next call of `watch` must find the lost collectors, even if it follows immediately.
    with suppress(MeshError, TimeoutError):
        coordinator.collectors_lost.call_one(lost).get(_REPORT_TIMEOUT_S)
    raise _not_recorded(procs, [_cause(failure) for _, failure in failures]) from failures[0][1]


def _failures(
    started: Sequence[tuple[int, Future[Literal[True]]]], deadline: float
) -> list[tuple[int, BaseException]]:
    """Wait for collectors, and return the failures of collectors that did not start.

    Raises:
        TimeoutError: The deadline has passed and no other failure occurred.
    """
    failures: list[tuple[int, BaseException]] = []
    late: TimeoutError | None = None
    for number, future in started:
        try:
            future.get(max(deadline - time.monotonic(), 0.0))
        except TimeoutError as error:
            late = error
        except MeshError as error:
            failures += [(number, failure) for _, failure in error.failures]
    if late is not None and not failures:
        raise late
    return failures


def _cause(failure: BaseException) -> str:
    """Describe a failure, with the process in which it occurred."""
    cause = cause_of(failure.__cause__ or failure)
    if isinstance(failure, SupervisionError) and not isinstance(failure, ActorError):
        return f"process {failure.where.proc}: {cause}"
    return cause


def _not_recorded(procs: ProcMesh, causes: list[str]) -> TelemetryError:
    shown = causes[:_CAUSES_MAX]
    if len(causes) > len(shown):
        shown.append(f"and {len(causes) - len(shown)} more")
    return TelemetryError(
        f"{procs} has processes that are not recorded ({'; '.join(shown)}): fix the cause and call "
        "watch again"
    )
