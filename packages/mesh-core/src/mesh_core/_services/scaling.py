"""The number of replicas of a service as a function of its load and losses."""

from __future__ import annotations

from collections import deque
from math import ceil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._services.options import Autoscale

__all__ = ["Intensity", "Scaler"]


class Scaler:
    """Scales with a delay: up after the load was high, down after it was low for longer."""

    def __init__(self, policy: Autoscale) -> None:
        self._policy = policy
        self._high_since: float | None = None
        self._low_since: float | None = None
        # The largest number of replicas requested since the load is low.
        self._low_most = 0

    def step(self, outstanding: int, current: int, now_s: float) -> int:
        """Return the target number of replicas.

        Args:
            outstanding: The number of outstanding and queued calls.
            current: The previous target number of replicas.
            now_s: The current time in seconds.
        """
        policy = self._policy
        wanted = ceil(outstanding / policy.target_outstanding)
        wanted = min(max(wanted, policy.min_replicas), policy.max_replicas)
        if wanted > current:
            self._low_since = None
            if self._high_since is None:
                self._high_since = now_s
            if now_s - self._high_since >= policy.upscale_delay_s:
                self._high_since = None
                return wanted
        elif wanted < current:
            self._high_since = None
            if self._low_since is None:
                self._low_since, self._low_most = now_s, 0
            self._low_most = max(self._low_most, wanted)
            if now_s - self._low_since >= policy.downscale_delay_s:
                self._low_since = None
                return self._low_most
        else:
            self._high_since = self._low_since = None
        return current


class Intensity:
    """Counts losses to determine the pause before the next start and when the service fails."""

    def __init__(
        self, losses_max: int, period_s: float, backoff_s: float, backoff_max_s: float
    ) -> None:
        self._losses_max = losses_max
        self._period_s = period_s
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._losses: deque[float] = deque()
        self._in_a_row = 0
        self.start_at_s = 0.0

    def lost(self, now_s: float, *, was_ready: bool) -> bool:
        """Count a loss and return whether the limit is exceeded.

        Args:
            now_s: The current time in seconds.
            was_ready: Whether the replica had accepted calls. Its loss then does not indicate that
                a start cannot succeed.
        """
        self._losses.append(now_s)
        while self._losses and self._losses[0] <= now_s - self._period_s:
            self._losses.popleft()
        if was_ready:
            # The first replacement is tried immediately.
            self._in_a_row = 0
        else:
            pause_s = min(self._backoff_s * 2**self._in_a_row, self._backoff_max_s)
            self._in_a_row += 1
            self.start_at_s = now_s + pause_s
        return len(self._losses) > self._losses_max

    def started(self) -> None:
        """Reset the pause after a successful start."""
        self._in_a_row = 0
