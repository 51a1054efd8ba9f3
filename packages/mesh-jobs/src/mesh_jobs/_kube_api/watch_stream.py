"""The event stream of a watch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import urllib3

from mesh_jobs._errors import SchedulerUnreachable

__all__ = ["KubeWatchStream"]

_CHUNK_LEN = 1 << 16
# This limit exceeds the size of any object: etcd accepts at most 1.5 MB.
_EVENT_LEN_MAX = 1 << 24

Object = dict[str, Any]


class KubeWatchStream:
    """The events of a watch, until it ends or is closed."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[tuple[str, Object]]:
        """Yield the type and the object of each event, until the connection ends.

        Raises:
            SchedulerUnreachable: The read timed out.
        """
        rest = b""
        try:
            for chunk in self._answer.stream(_CHUNK_LEN):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in filter(None, whole):
                    event = json.loads(line)
                    yield event["type"], event["object"]
                if len(rest) > _EVENT_LEN_MAX:
                    return
        except urllib3.exceptions.ReadTimeoutError as error:
            raise SchedulerUnreachable(
                "the API server does not respond: try again later"
            ) from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            return  # A disconnect is not an error: the next watch resumes.
        finally:
            self._answer.close()

    def close(self) -> None:
        """Close the stream; a thread that reads it returns."""
        # Older versions of urllib3 cannot shut down a response; the thread then reads until its
        # end.
        with suppress(AttributeError, OSError, ValueError, RuntimeError):
            self._answer.shutdown()
