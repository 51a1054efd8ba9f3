"""Topics that are queried repeatedly for all pages that show them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["TopicStreams"]

_PERIOD_S = 1.0
# Interval of heartbeats on idle streams, which detect clients that have disconnected.
_HEARTBEAT_S = 1.0
_STREAM_COUNT_MAX = 64
_HEARTBEAT = b":\n\n"


class TopicStreams:
    r"""Streams of topics as they change, with a single query for all clients of a topic.

    Args:
        period_s: Seconds between two queries of a topic; longer if a query takes longer.
        heartbeat_s: Seconds after which an idle stream sends an empty line.
        stream_count_max: The maximum number of streams.

    Example:
        >>> streams = TopicStreams()
        >>> stream = streams.stream("now", lambda: b"1")
        >>> next(stream)
        b'data: 1\n\n'
        >>> stream.close()
        >>> streams.close()
    """

    def __init__(
        self,
        period_s: float = _PERIOD_S,
        heartbeat_s: float = _HEARTBEAT_S,
        stream_count_max: int = _STREAM_COUNT_MAX,
    ) -> None:
        self._period_s = period_s
        self._heartbeat_s = heartbeat_s
        self._stream_count_max = stream_count_max
        self._changed = threading.Condition()
        self._pollers: dict[str, _TopicPoller] = {}
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of streams is open."""
        return self.stream_count >= self._stream_count_max

    @property
    def stream_count(self) -> int:
        """The number of open streams."""
        with self._changed:
            return sum(poller.subscriber_count for poller in self._pollers.values())

    @property
    def topics(self) -> dict[str, int]:
        """The number of streams of each active topic."""
        with self._changed:
            return {name: poller.subscriber_count for name, poller in self._pollers.items()}

    def stream(self, name: str, query: Callable[[], bytes]) -> Iterator[bytes]:
        """Yield the value of a topic, now and after each change, as server-sent events.

        The stream ends when this instance is closed, or at once if there are too many streams.

        Args:
            name: The topic; all streams of the same name get the values of the first one's `query`.
            query: Returns the value as one line; called in a separate thread.
        """
        if self.is_full:
            return
        poller = self._subscribe(name, query)
        seen = 0
        try:
            while True:
                with self._changed:
                    end = time.monotonic() + self._heartbeat_s
                    while not self._is_closed and poller.version == seen:
                        if not self._changed.wait(max(0.0, end - time.monotonic())):
                            break
                    if self._is_closed:
                        return
                    is_new, seen, value = poller.version != seen, poller.version, poller.value
                yield b"data: " + value + b"\n\n" if is_new else _HEARTBEAT
        finally:
            self._unsubscribe(poller)

    def close(self) -> None:
        """End all streams; later calls do nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _subscribe(self, name: str, query: Callable[[], bytes]) -> _TopicPoller:
        with self._changed:
            poller = self._pollers.get(name)
            if poller is None:
                poller = self._pollers[name] = _TopicPoller(name, query)
                threading.Thread(
                    target=self._poll, args=(poller,), name="mesh-telemetry-topic", daemon=True
                ).start()
            poller.subscriber_count += 1
            return poller

    def _unsubscribe(self, poller: _TopicPoller) -> None:
        with self._changed:
            poller.subscriber_count -= 1
            if not poller.subscriber_count and self._pollers.get(poller.name) is poller:
                # A new client starts a new poller; the thread of this one exits on its own.
                del self._pollers[poller.name]
                self._changed.notify_all()

    def _poll(self, poller: _TopicPoller) -> None:
        while True:
            began = time.monotonic()
            value = poller.query()
            took_s = time.monotonic() - began
            with self._changed:
                if value != poller.value:
                    poller.value, poller.version = value, poller.version + 1
                    self._changed.notify_all()
                # Queries take at most half of the time.
                pause_s = max(self._period_s - took_s, took_s)
                if self._changed.wait_for(
                    lambda: self._is_closed or not poller.subscriber_count, pause_s
                ):
                    return


class _TopicPoller:
    """A topic with at least one stream."""

    def __init__(self, name: str, query: Callable[[], bytes]) -> None:
        self.name = name
        self.query = query
        self.subscriber_count = 0
        self.value = b""
        self.version = 0
