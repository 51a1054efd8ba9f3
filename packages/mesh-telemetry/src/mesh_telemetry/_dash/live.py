"""Topics that are queried repeatedly for all pages that show them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["Live"]

_PERIOD_S = 1.0
# Interval of heartbeats on idle streams, which detect clients that have disconnected.
_HEARTBEAT_S = 1.0
_STREAM_COUNT_MAX = 64
_HEARTBEAT = b":\n\n"


class Live:
    r"""Streams of topics as they change, with a single query for all clients of a topic.

    Args:
        period_s: Seconds between two queries of a topic; longer if a query takes longer.
        heartbeat_s: Seconds after which an idle stream sends an empty line.
        stream_count_max: The maximum number of streams.

    Example:
        >>> live = Live()
        >>> stream = live.stream("now", lambda: b"1")
        >>> next(stream)
        b'data: 1\n\n'
        >>> stream.close()
        >>> live.close()
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
        self._turn = threading.Condition()
        self._tickers: dict[str, _Ticker] = {}
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of streams is open."""
        return self.stream_count >= self._stream_count_max

    @property
    def stream_count(self) -> int:
        """The number of open streams."""
        with self._turn:
            return sum(ticker.listeners for ticker in self._tickers.values())

    @property
    def topics(self) -> dict[str, int]:
        """The number of streams of each active topic."""
        with self._turn:
            return {name: ticker.listeners for name, ticker in self._tickers.items()}

    def stream(self, name: str, ask: Callable[[], bytes]) -> Iterator[bytes]:
        """Yield the answer of a topic, now and after each change, as server-sent events.

        The stream ends when this instance is closed, or at once if there are too many streams.

        Args:
            name: The topic; all streams of the same name get the answers of the first one's `ask`.
            ask: Returns the answer as one line; called in a separate thread.
        """
        if self.is_full:
            return
        ticker = self._joined(name, ask)
        seen = 0
        try:
            while True:
                with self._turn:
                    end = time.monotonic() + self._heartbeat_s
                    while not self._is_closed and ticker.version == seen:
                        if not self._turn.wait(max(0.0, end - time.monotonic())):
                            break
                    if self._is_closed:
                        return
                    is_new, seen, answer = ticker.version != seen, ticker.version, ticker.answer
                yield b"data: " + answer + b"\n\n" if is_new else _HEARTBEAT
        finally:
            self._leave(ticker)

    def close(self) -> None:
        """End all streams; later calls do nothing."""
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()

    def _joined(self, name: str, ask: Callable[[], bytes]) -> _Ticker:
        with self._turn:
            ticker = self._tickers.get(name)
            if ticker is None:
                ticker = self._tickers[name] = _Ticker(name, ask)
                threading.Thread(
                    target=self._tick, args=(ticker,), name="mesh-telemetry-live", daemon=True
                ).start()
            ticker.listeners += 1
            return ticker

    def _leave(self, ticker: _Ticker) -> None:
        with self._turn:
            ticker.listeners -= 1
            if not ticker.listeners and self._tickers.get(ticker.name) is ticker:
                # A new client starts a new ticker; the thread of this one exits on its own.
                del self._tickers[ticker.name]
                self._turn.notify_all()

    def _tick(self, ticker: _Ticker) -> None:
        while True:
            began = time.monotonic()
            answer = ticker.ask()
            took_s = time.monotonic() - began
            with self._turn:
                if answer != ticker.answer:
                    ticker.answer, ticker.version = answer, ticker.version + 1
                    self._turn.notify_all()
                # Queries take at most half of the time.
                pause_s = max(self._period_s - took_s, took_s)
                if self._turn.wait_for(lambda: self._is_closed or not ticker.listeners, pause_s):
                    return


class _Ticker:
    """A topic with at least one stream."""

    def __init__(self, name: str, ask: Callable[[], bytes]) -> None:
        self.name = name
        self.ask = ask
        self.listeners = 0
        self.answer = b""
        self.version = 0
