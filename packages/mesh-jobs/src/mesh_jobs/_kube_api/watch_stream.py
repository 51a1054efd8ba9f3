"""The answer to a watch: events, as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import urllib3

from mesh_jobs._errors import SchedulerUnreachable

__all__ = ["KubeStream"]

_CHUNK_LEN = 1 << 16
# Objects are smaller: etcd takes none of more than 1.5 MB.
_EVENT_LEN_MAX = 1 << 24

Object = dict[str, Any]


class KubeStream:
    """What a watch tells, one event after another, until it ends or is closed."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[tuple[str, Object]]:
        """Gives the type of each event, and its object; ends with the connection.

        Raises:
            SchedulerUnreachable: The server has said nothing for too long.
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
            raise SchedulerUnreachable("the API server does not answer: ask again later") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            return  # It was cut, which is no news: what the next one says is.
        finally:
            self._answer.close()

    def close(self) -> None:
        """Ends it, for whoever reads it now too."""
        # Older versions of the library cannot: such a watch is read to its end by its thread.
        with suppress(AttributeError, OSError, ValueError, RuntimeError):
            self._answer.shutdown()
