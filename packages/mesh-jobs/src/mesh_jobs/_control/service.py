"""The methods of the control service."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from mesh_jobs._control.conversion import as_host, as_process, as_stacks
from mesh_jobs._control.messages import SERVICE
from mesh_jobs._control.methods import METHODS
from mesh_jobs._control.relay import RelayServer
from mesh_jobs._control.status_error import StatusError
from mesh_jobs._host.host import ServedHost
from mesh_jobs._host.process_termination import terminate_process
from mesh_jobs._host.processes import HostProcess, Kind, sampled
from mesh_jobs._host.stacks import PySpy, PySpyFailed

__all__ = ["ControlService"]

_SAMPLE_MS_MAX = 5000
_GRACE_S = 10.0
_GRACE_MAX_S = 300.0
_FOLLOWERS_MAX = 8
_LOOK_S = 0.5
_INSTALL = "pip install 'torchmesh-jobs[stacks]'"


class ControlService:
    """Control service of one host.

    Args:
        host: The host.
        spy: The sampler of stacks. Defaults to the installed py-spy.
    """

    def __init__(self, host: ServedHost, spy: PySpy | None = None) -> None:
        self._host = host
        self._spy = spy or PySpy()
        self._relay_server = RelayServer()
        self._followers = threading.BoundedSemaphore(_FOLLOWERS_MAX)
        self._is_over = threading.Event()

    def add_to(self, server: Any) -> None:
        """Register the service with a server."""
        answers = {
            "List": self.list_processes,
            "Logs": self.logs,
            "Stop": self.stop,
            "Stacks": self.stacks,
            "Relay": self._relay_server.relay,
        }
        kinds = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }
        handlers = {}
        for name, method in METHODS.items():
            make = kinds[method.has_request_stream, method.is_stream]
            wrap = _stream if method.is_stream else _single
            handlers[name] = make(
                wrap(answers[name]),
                request_deserializer=method.request.FromString,
                response_serializer=method.response.SerializeToString,
            )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def close(self) -> None:
        """Cancel all streams and relays that are open."""
        self._is_over.set()
        self._relay_server.close()

    def list_processes(self, request: Any, context: Any) -> Any:
        """List the processes of the host."""
        if request.sample_ms > _SAMPLE_MS_MAX:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"sample_ms is {request.sample_ms}: give 0 to {_SAMPLE_MS_MAX}",
            )
        found = sampled(self._host.processes, request.sample_ms / 1000, self._is_over.wait)
        owners = self._host.owners_among(found)
        return METHODS["List"].response(
            host=as_host(self._host, self._host.program_among(found)),
            processes=[as_process(one, owners.get(one.pid, "")) for one in found],
        )

    def logs(self, request: Any, context: Any) -> Iterator[Any]:
        """Stream the last lines of output and, if requested, the lines that follow."""
        log, line = self._host.log, METHODS["Logs"].response
        if request.follow and not self._followers.acquire(blocking=False):
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{_FOLLOWERS_MAX} callers already follow this log: stop one of them",
            )
        try:
            number = log.count
            for one in log.last(request.lines):
                number = one.number
                yield line(number=number, at=one.at, text=one.text, is_error=one.is_error)
            while request.follow and context.is_active() and not self._is_over.is_set():
                new = log.after(number, _LOOK_S)
                if new is None:
                    return
                for one in new:
                    number = one.number
                    yield line(number=number, at=one.at, text=one.text, is_error=one.is_error)
        finally:
            if request.follow:
                self._followers.release()

    def stop(self, request: Any, context: Any) -> Any:
        """Terminate a process, or the program that the host serves."""
        grace_s = request.grace_s if request.HasField("grace_s") else _GRACE_S
        if not 0 <= grace_s <= _GRACE_MAX_S:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"grace_s is {grace_s:g}: give 0 to {_GRACE_MAX_S:g}",
            )
        found = self._host.processes()
        program = self._host.program_among(found)
        if request.pid:
            process = self._chosen(found, request.pid, "stopped")
        elif program is None:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "the host serves no program: there is nothing to stop",
            )
        else:
            process = next(one for one in found if one.pid == program.agent)
        owners = self._host.owners_among(found)
        if process.kind is Kind.AGENT and process.pid not in owners:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"process {process.pid} waits for the next program and cannot be stopped: to "
                "release the host, kill the job",
            )
        try:
            termination = terminate_process(process, grace_s, self._is_over)
        except PermissionError:
            raise StatusError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"process {process.pid} belongs to another user: stop it there as that user",
            ) from None
        except TimeoutError as error:
            raise StatusError(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"{error}: check what blocks it on that host"
            ) from None
        if termination is None:
            raise StatusError(
                grpc.StatusCode.NOT_FOUND, f"process {process.pid} has already exited"
            )
        return METHODS["Stop"].response(
            process=as_process(process, owners.get(process.pid, "")),
            is_killed=termination.is_killed,
            took_s=termination.took_s,
        )

    def stacks(self, request: Any, context: Any) -> Any:
        """Return the stacks of threads."""
        if not self._spy.is_installed:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"py-spy is not installed on {self._host.name}: {_INSTALL} there",
            )
        found = self._host.processes()
        owners = self._host.owners_among(found)
        if request.pid:
            chosen = [self._any(found, request.pid)]
        else:
            chosen = [one for one in found if one.kind is Kind.PROC]
        looked = self._spy.look([one.pid for one in chosen])
        failed = [one for one in looked if isinstance(one, PySpyFailed)]
        if failed and len(failed) == len(looked):
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, str(failed[0]))
        return METHODS["Stacks"].response(
            processes=[
                as_stacks(process, owners.get(process.pid, ""), one)
                for process, one in zip(chosen, looked, strict=True)
            ]
        )

    def _any(self, found: list[HostProcess], pid: int) -> HostProcess:
        process = next((one for one in found if one.pid == pid), None)
        if process is None:
            raise StatusError(
                grpc.StatusCode.NOT_FOUND,
                f"the worker of {self._host.name} has no process {pid}: List returns its processes",
            )
        return process

    def _chosen(self, found: list[HostProcess], pid: int, what: str) -> HostProcess:
        """Return a process that may be terminated individually."""
        process = self._any(found, pid)
        if pid == os.getpid():
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"process {pid} is the worker and cannot be {what} separately: to release the "
                "host, kill the job",
            )
        if process.kind is Kind.MACHINERY:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"process {pid} supervises the processes of the program and cannot be {what} "
                "separately: to stop the program, use pid 0",
            )
        return process


def _single(method: Callable[..., Any]) -> Callable[..., Any]:
    def answer(request: Any, context: Any) -> Any:
        try:
            return method(request, context)
        except StatusError as error:
            context.abort(error.code, error.message)

    return answer


def _stream(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def answer(request: Any, context: Any) -> Iterator[Any]:
        try:
            yield from method(request, context)
        except StatusError as error:
            context.abort(error.code, error.message)

    return answer
