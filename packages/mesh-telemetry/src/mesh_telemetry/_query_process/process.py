"""A query process, which runs one query at a time and may be killed at any time."""

from __future__ import annotations

import os
import pickle
import re
from typing import TYPE_CHECKING, Any, NoReturn

from mesh_telemetry._errors import QueryError, TelemetryError
from mesh_telemetry._query.query_limits import QueryLimits
from mesh_telemetry._query.query_request import failure_reply
from mesh_telemetry._query_process.frame_connection import FrameConnection
from mesh_telemetry._query_process.frames import FAILURE, FRAGMENT, RESULT, Frame, packed
from mesh_telemetry._query_process.limits import SLACK_BYTES, limit_files, out_of_memory
from mesh_telemetry._query_process.query_worker import QueryWorker

if TYPE_CHECKING:
    import socket

__all__ = ["run"]

_OUT_OF_MEMORY = re.compile("memory allocation failed|cannot allocate memory", re.IGNORECASE)


def run(connection: socket.socket, host: dict[str, Any]) -> NoReturn:
    """Serve requests until the connection is closed; does not return.

    Args:
        connection: The connection to the telemetry process of the host.
        host: The arguments of `QueryWorker` about the host.
    """
    limit_files()
    frames = FrameConnection(connection)
    worker = QueryWorker(frames, **host)
    while True:
        frame = frames.next_request()
        if frame is None:
            os._exit(0)
        reply, is_usable = _handle(worker, frame)
        frames.send(reply)
        if not is_usable:
            # The state of a library that has panicked is unknown.
            os._exit(1)


def _handle(worker: QueryWorker, frame: Frame) -> tuple[bytes, bool]:
    """Return the frame that replies to a request, and whether this process is still usable."""
    is_fragment = frame.kind == FRAGMENT
    is_usable = True
    limits = QueryLimits()
    most = limits.host_memory_max_bytes if is_fragment else limits.memory_max_bytes
    refused = out_of_memory(most + SLACK_BYTES)
    try:
        work = worker.fragment if is_fragment else worker.query
        return packed(RESULT, work(pickle.loads(frame.body))), True
    except TelemetryError as error:
        # The engine reports a failed allocation only in the text of its errors.
        raised = refused if _OUT_OF_MEMORY.search(str(error)) else error
    except MemoryError:
        raised = refused
    except RecursionError:
        raised = QueryError("the query is nested too deeply: simplify it")
    except BaseException as error:  # a panic of the engine is not an Exception
        raised = QueryError(f"the query cannot be run ({error}): correct it")
        is_usable = False
    if is_fragment:
        return packed(FAILURE, pickle.dumps(raised)), is_usable
    return packed(RESULT, failure_reply(raised)), is_usable
