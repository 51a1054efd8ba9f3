"""Options of a service: its size, its limits, and its handling of failures."""

from __future__ import annotations

from typing import Any, ParamSpec, TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mesh_core._calls.actor import Actor
    from mesh_core._meshes.host_mesh import HostMesh
    from mesh_core._services.service import Service

    A = TypeVar("A", bound=Actor)
else:
    A = TypeVar("A")

__all__ = ["Autoscale", "HealthCheck", "ServiceOptions"]

P = ParamSpec("P")


class _Frozen:
    """Fields that are set once and shown by `repr`."""

    __slots__: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(f"{type(self).__name__} cannot be changed: create another one")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


class HealthCheck(_Frozen):
    """A periodic call of an endpoint of every replica; the endpoint only has to return.

    Mesh detects a dead process without a health check. A health check finds processes that are
    alive but do not work: a replica that hangs, or that reports a problem by raising an exception.
    Calls are served one at a time, so the check waits for earlier calls. Use a
    `concurrent_endpoint` of an `async` class, or allow for this time in `timeout_s`.

    Args:
        endpoint: The name of the endpoint, which takes no arguments.
        period_s: Seconds between two checks of a replica.
        timeout_s: Seconds after which a check has failed.
        failures_max: The number of consecutive failures after which the replica is replaced.

    Raises:
        ValueError: A number is not positive.
    """

    __slots__ = ("endpoint", "failures_max", "period_s", "timeout_s")

    endpoint: str
    period_s: float
    timeout_s: float
    failures_max: int

    def __init__(
        self,
        endpoint: str,
        *,
        period_s: float = 5.0,
        timeout_s: float = 5.0,
        failures_max: int = 3,
    ) -> None:
        _positive(period_s=period_s, timeout_s=timeout_s, failures_max=failures_max)
        self.endpoint = endpoint
        self.period_s = period_s
        self.timeout_s = timeout_s
        self.failures_max = failures_max


class Autoscale(_Frozen):
    """Adapts the number of replicas to the number of outstanding and queued calls.

    Args:
        max_replicas: The maximum number of replicas.
        min_replicas: The minimum number of replicas.
        target_outstanding: The target number of calls per replica.
        period_s: Seconds between two evaluations.
        upscale_delay_s: Seconds of high load before the service grows.
        downscale_delay_s: Seconds of low load before the service shrinks.

    Raises:
        ValueError: A number is not positive, a delay is negative, or the maximum is below the
            minimum.
    """

    __slots__ = (
        "downscale_delay_s",
        "max_replicas",
        "min_replicas",
        "period_s",
        "target_outstanding",
        "upscale_delay_s",
    )

    max_replicas: int
    min_replicas: int
    target_outstanding: float
    period_s: float
    upscale_delay_s: float
    downscale_delay_s: float

    def __init__(
        self,
        max_replicas: int,
        *,
        min_replicas: int = 1,
        target_outstanding: float = 4.0,
        period_s: float = 0.5,
        upscale_delay_s: float = 1.0,
        downscale_delay_s: float = 30.0,
    ) -> None:
        _positive(
            min_replicas=min_replicas, target_outstanding=target_outstanding, period_s=period_s
        )
        if max_replicas < min_replicas:
            raise ValueError(f"max_replicas {max_replicas} is less than min_replicas")
        if upscale_delay_s < 0 or downscale_delay_s < 0:
            raise ValueError("a delay is negative: give seconds from 0 up")
        self.max_replicas = max_replicas
        self.min_replicas = min_replicas
        self.target_outstanding = target_outstanding
        self.period_s = period_s
        self.upscale_delay_s = upscale_delay_s
        self.downscale_delay_s = downscale_delay_s


class ServiceOptions(_Frozen):
    """The options of a service, as returned by `Service.options`."""

    __slots__ = (
        "autoscale",
        "backoff_max_s",
        "backoff_s",
        "bootstrap",
        "drain_timeout_s",
        "health_check",
        "hosts",
        "hosts_per_replica",
        "num_replicas",
        "outstanding_max",
        "procs",
        "queue_len_max",
        "replacement_period_s",
        "replacements_max",
        "retries",
        "setup",
        "start_timeout_s",
    )

    autoscale: Autoscale | None
    backoff_max_s: float
    backoff_s: float
    bootstrap: Callable[[], Awaitable[None] | None] | None
    drain_timeout_s: float
    health_check: HealthCheck | None
    hosts: HostMesh | None
    hosts_per_replica: int
    num_replicas: int
    outstanding_max: int
    procs: dict[str, int]
    queue_len_max: int
    replacement_period_s: float
    replacements_max: int
    retries: dict[str, int]
    setup: Callable[[Any], object] | None
    start_timeout_s: float

    def __init__(
        self,
        *,
        num_replicas: int = 1,
        procs: int | Mapping[str, int] = 1,
        hosts: HostMesh | None = None,
        hosts_per_replica: int = 1,
        outstanding_max: int = 64,
        queue_len_max: int = 1024,
        retries: Mapping[str, int] | None = None,
        health_check: HealthCheck | None = None,
        autoscale: Autoscale | None = None,
        setup: Callable[[Any], object] | None = None,
        bootstrap: Callable[[], Awaitable[None] | None] | None = None,
        replacements_max: int = 10,
        replacement_period_s: float = 60.0,
        backoff_s: float = 0.1,
        backoff_max_s: float = 10.0,
        start_timeout_s: float = 300.0,
        drain_timeout_s: float = 60.0,
    ) -> None:
        """Create the options; see `Service.options`."""
        _positive(
            num_replicas=num_replicas,
            hosts_per_replica=hosts_per_replica,
            outstanding_max=outstanding_max,
            replacement_period_s=replacement_period_s,
            backoff_s=backoff_s,
            backoff_max_s=backoff_max_s,
            start_timeout_s=start_timeout_s,
            drain_timeout_s=drain_timeout_s,
        )
        if queue_len_max < 0 or replacements_max < 0:
            raise ValueError("queue_len_max and replacements_max must be 0 or more")
        if isinstance(procs, int):
            _positive(procs=procs)
            procs = {"procs": procs} if procs > 1 else {}
        if autoscale is not None:
            num_replicas = min(max(num_replicas, autoscale.min_replicas), autoscale.max_replicas)
        self.num_replicas = num_replicas
        self.procs = dict(procs)
        self.hosts = hosts
        self.hosts_per_replica = hosts_per_replica
        self.outstanding_max = outstanding_max
        self.queue_len_max = queue_len_max
        self.retries = dict(retries or {})
        self.health_check = health_check
        self.autoscale = autoscale
        self.setup = setup
        self.bootstrap = bootstrap
        self.replacements_max = replacements_max
        self.replacement_period_s = replacement_period_s
        self.backoff_s = backoff_s
        self.backoff_max_s = backoff_max_s
        self.start_timeout_s = start_timeout_s
        self.drain_timeout_s = drain_timeout_s

    # Starts a service; `Service` sets it.
    _start: Callable[..., Service[Any]]

    def spawn(
        self, name: str, cls: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs
    ) -> Service[A]:
        """Start the service and return before its replicas run.

        Args:
            name: The name for logs and errors.
            cls: The class of the actors of each replica.
            *args: Arguments of its `__init__`.
            **kwargs: Keyword arguments of its `__init__`.

        Raises:
            ValueError: `cls` is not an `Actor`, or lacks an endpoint that the options name.
            TypeError: The arguments do not match `__init__`, or cannot be pickled.
        """
        return self._start(self, name, cls, args, kwargs)


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} {number!r} is not positive: give more than 0")
