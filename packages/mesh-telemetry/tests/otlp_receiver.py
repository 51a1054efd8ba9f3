"""A minimal OTLP collector over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

logs_pb2 = pytest.importorskip("opentelemetry.proto.collector.logs.v1.logs_service_pb2")
metrics_pb2 = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
trace_pb2 = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


class Receiver:
    """The received data, and the response to the next requests.

    Attributes:
        url: The address of the collector.
        status: The status of responses; requests are stored only if it is 200.
        release: Requests get a response only while this event is set.
        status_counts: The number of responses by status.
        headers: The headers of the last request.
    """

    def __init__(self) -> None:
        self.status = 200
        self.release = threading.Event()
        self.release.set()
        self.status_counts: dict[int, int] = {}
        self.headers: dict[str, str] = {}
        self._turn = threading.Lock()
        self._bodies: dict[str, list[bytes]] = {"metrics": [], "logs": [], "traces": []}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.release.wait()
                status = receiver.take(self.path, body, dict(self.headers.items()))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        """Store a request if the status is 200."""
        with self._turn:
            self.headers = headers
            self.status_counts[self.status] = self.status_counts.get(self.status, 0) + 1
            if self.status == 200:
                self._bodies[path.removeprefix("/v1/")].append(body)
            return self.status

    def spans(self) -> list[tuple[dict[str, Any], Any]]:
        """Return all spans, each with the attributes of its process."""
        return [
            (_said(group.resource.attributes), span)
            for request in self._requests("traces", trace_pb2.ExportTraceServiceRequest)
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]

    def logs(self) -> list[tuple[dict[str, Any], Any]]:
        """Return all log records."""
        return [
            (_said(group.resource.attributes), record)
            for request in self._requests("logs", logs_pb2.ExportLogsServiceRequest)
            for group in request.resource_logs
            for scope in group.scope_logs
            for record in scope.log_records
        ]

    def metrics(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return all metrics with this name."""
        return [
            (_said(group.resource.attributes), metric)
            for request in self._requests("metrics", metrics_pb2.ExportMetricsServiceRequest)
            for group in request.resource_metrics
            for scope in group.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]

    def _requests(self, signal: str, kind: Any) -> list[Any]:
        with self._turn:
            return [kind.FromString(body) for body in self._bodies[signal]]

    def close(self) -> None:
        """Stop the collector."""
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


def said(message: Any) -> dict[str, Any]:
    """Return the attributes of a message."""
    return _said(message.attributes)


def _said(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a collector until the end of the block."""
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()
