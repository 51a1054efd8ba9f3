"""The outcome of a run."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._schedules.events import Event

__all__ = ["Failure", "Run"]


class Failure:
    """How a run failed.

    Attributes:
        actor: The name of the actor; empty if no actor could continue.
        endpoint: The endpoint.
        error: The exception.
    """

    def __init__(self, actor: str, endpoint: str, error: BaseException) -> None:
        self.actor: str = actor
        self.endpoint: str = endpoint
        self.error: BaseException = error

    @property
    def key(self) -> tuple[str, str]:
        """The endpoint and the type of the exception."""
        return self.endpoint, type(self.error).__name__

    @property
    def text(self) -> str:
        """The failure, in one line."""
        what = f"{type(self.error).__name__}: {self.error}"
        return f"{self.endpoint} of {self.actor} raises {what}" if self.actor else what


class Run:
    """The outcome of a run.

    Attributes:
        events: The events, in order.
        failure: The failure of the run; None if it did not fail.
        unfinished: The reason why the run ended early without a failure: an action of an actor that
            the record does not cover. Empty if the run ended regularly.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.failure: Failure | None = None
        self.unfinished: str = ""
