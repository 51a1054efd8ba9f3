"""A replay in pdb, which returns to an earlier message by running the actor again."""

from __future__ import annotations

import pdb
from typing import Any

from mesh_core._replay.errors import RecordEnded, ReplayDiverged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._replay.replay import Replay

__all__ = ["debug"]


class _GoBack(BaseException):
    """The user wants to stop at an earlier message."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Debugger(pdb.Pdb):
    """Pdb with a command that returns to the previous message."""

    def __init__(self) -> None:
        super().__init__(nosigint=True)
        self.prompt = "(replay) "
        self.number = 0

    def do_back(self, arg: str) -> None:
        """Run the replay again, and stop one message earlier, or at the given number."""
        number = int(arg) if arg.strip().isdigit() else self.number - 1
        if number < 0:
            self.message("this is the first message")
            return
        raise _GoBack(number)


def debug(replay: Replay, *, first: int | None, is_stepping: bool) -> int:
    """Run a replay in pdb.

    Args:
        replay: The replay.
        first: The number of the message at which to stop first; None for none.
        is_stepping: Whether to stop at every message.

    Returns:
        The exit status, as for the command.
    """
    stop_at = first
    while True:
        debugger = _Debugger()
        try:
            replay.run(through=_through(debugger, stop_at, is_stepping=is_stepping))
        except _GoBack as back:
            stop_at = back.number
        except (ReplayDiverged, RecordEnded) as error:
            print(f"mesh replay: {error}")
            return 3
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
            try:
                _post_mortem(debugger, error)
            except _GoBack as back:
                stop_at = back.number
                continue
            return 1
        else:
            return 0


def _through(debugger: _Debugger, stop_at: int | None, *, is_stepping: bool) -> Callable[..., Any]:
    def call(
        number: int, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        debugger.number = number
        if number == stop_at or (is_stepping and number >= (stop_at or 0)):
            debugger.message(f"message #{number}: {name}")
            return debugger.runcall(function, *args, **kwargs)
        return function(*args, **kwargs)

    return call


def _post_mortem(debugger: _Debugger, error: BaseException) -> None:
    debugger.reset()
    debugger.interaction(None, error.__traceback__)
