"""Port forwarding to workers through the API server, for programs outside the cluster network."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from kubernetes import client
from kubernetes.stream import portforward

from mesh_jobs._errors import JobError, SchedulerUnreachable
from mesh_jobs._kube_api.client import KubeApi

__all__ = ["KubeForward", "forward_to", "is_any_reachable", "is_forwarded", "stop_forward"]

_CHUNK_LEN = 1 << 16
_REACH_S = 2.0
_REACHED_MAX = 4

#: A function that returns the pod and the port of each available worker, preferred first.
Choice = Callable[[], Sequence[tuple[str, int]]]

# Some versions of the library have no type annotations.
_portforward: Any = portforward


class KubeForward:
    """Local listener that forwards each connection to a port of a pod, in a separate websocket.

    There is no tunnel to restart: if a connection is lost, its owner connects again, and reaches
    the same pod or, if that is no longer ready, another one.

    Args:
        api: The API client for the namespace of the pods.
        choice: A function that returns the available workers.

    Raises:
        SchedulerUnreachable: The API server does not respond, or no worker is ready.
        JobError: The API server rejects the request.
    """

    def __init__(self, api: KubeApi, choice: Choice) -> None:
        self._api = api
        self._choice = choice
        self._last: tuple[str, int] | None = None
        self._lock = threading.Lock()
        # This call detects a missing permission before connections depend on it.
        self._dial().close()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: str = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="kube-forward", daemon=True).start()

    def close(self) -> None:
        """Stop listening; open connections continue."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=[here], name="kube-forward", daemon=True
            ).start()

    def _serve(self, here: socket.socket) -> None:
        try:
            there = self._dial()
        except JobError:
            here.close()  # The caller connects again.
            return
        back = threading.Thread(target=_copy, args=[there, here], name="kube-forward", daemon=True)
        back.start()
        _copy(here, there)
        back.join()
        here.close()
        there.close()

    def _dial(self) -> Any:
        """Connect to a worker; return an object with the interface of a socket."""
        found = list(self._choice())
        with self._lock:
            # All connections of a program use the same worker as long as it is available.
            if self._last in found:
                found.insert(0, self._last)
        if not found:
            raise SchedulerUnreachable("no worker is ready for port forwarding: try again later")
        pod, port = found[0]
        # A separate client is needed because the library modifies it while it opens a websocket.
        core: Any = client.CoreV1Api(client.ApiClient(self._api.client.configuration))
        try:
            opened = _portforward(
                core.connect_get_namespaced_pod_portforward,
                pod,
                self._api.namespace,
                ports=str(port),
            )
        except client.ApiException as error:
            message = str(error.reason or error)
            if "403" in message or "orbidden" in message:
                raise JobError(
                    "no permission to create pods/portforward in namespace "
                    f"{self._api.namespace!r}: {message}: KubernetesJob.role() of a job with "
                    "port_forward=True prints the required role"
                ) from error
            raise SchedulerUnreachable(
                f"the API server does not forward to pod {pod}: {message}: try again later"
            ) from error
        with self._lock:
            self._last = (pod, port)
        return opened.socket(port)


def _copy(one: Any, other: Any) -> None:
    try:
        while read := one.recv(_CHUNK_LEN):
            other.sendall(read)
    except OSError:
        pass
    for end in (one, other):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


# A program attaches to a job once, and all its `Job` objects share the forwarding.
_forwards: dict[tuple[int, str], KubeForward] = {}


def forward_to(allocation_id: str, api: KubeApi, choice: Choice) -> str:
    """Return the local address that is forwarded to a worker of an allocation.

    Raises:
        SchedulerUnreachable: The API server does not respond.
        JobError: The API server rejects the request.
    """
    key = (os.getpid(), allocation_id)
    if key not in _forwards:
        _forwards[key] = KubeForward(api, choice)
    return _forwards[key].address


def is_forwarded(allocation_id: str) -> bool:
    """Return whether this program forwards a port to the allocation already."""
    return (os.getpid(), allocation_id) in _forwards


def stop_forward(allocation_id: str) -> None:
    """Stop the forwarding to an allocation, if there is any."""
    known = _forwards.pop((os.getpid(), allocation_id), None)
    if known is not None:
        known.close()


def is_any_reachable(addresses: Sequence[str]) -> bool:
    """Return whether at least one of the workers accepts connections from here."""
    probed = addresses[:_REACHED_MAX]
    with ThreadPoolExecutor(max(1, len(probed))) as pool:
        return any(pool.map(_is_reachable, probed))


def _is_reachable(address: str) -> bool:
    name, _, port = address.partition("://")[2].rpartition(":")
    try:
        socket.create_connection((name.strip("[]"), int(port)), _REACH_S).close()
    except OSError:
        return False
    return True
