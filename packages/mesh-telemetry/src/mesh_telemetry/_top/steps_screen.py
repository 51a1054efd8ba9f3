"""The screen of training steps: a heat map with a line for each rank."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._steps.heat_map import heat_map, trained_meshes

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from mesh_telemetry._serve.program_client import ProgramClient
    from mesh_telemetry._steps.heat_map import HeatMap, RankSteps

__all__ = ["STEPS_KEYS", "StepsScreen", "heat_map_text"]

_LABEL_LEN = 44
_STEPS_MIN = 10
# A delay of this share of a step has the strongest colour.
_DELAY_MAX = 0.3
_LATE, _EARLY, _NEUTRAL = (214, 69, 65), (47, 138, 91), (60, 66, 78)

STEPS_KEYS: list[BindingType] = [
    Binding("n", "next_mesh", "Next mesh"),
    Binding("o", "by_delay", "By rank or delay"),
    Binding("escape,t", "back", "Back"),
]


class StepsScreen(Screen[None]):
    """Shows how much each rank delays each training step.

    Args:
        client: Returns the program, if there is one.
        refresh_s: Seconds between two queries.
    """

    BINDINGS: ClassVar[list[BindingType]] = STEPS_KEYS

    def __init__(self, client: Callable[[], ProgramClient | None], refresh_s: float) -> None:
        super().__init__()
        self._program_client = client
        self._refresh_s = refresh_s
        self._refresh_now = asyncio.Event()
        self._meshes: list[str] = []
        self._mesh = ""
        self._is_by_delay = False
        self._head = Static(id="steps-head")
        self._map = Static(id="steps-map")

    def compose(self) -> ComposeResult:
        """Create a head line above the map."""
        yield self._head
        with VerticalScroll():
            yield self._map
        yield Footer()

    def on_screen_resume(self) -> None:
        """Query while the screen is shown."""
        self._refresh()

    @work(exclusive=True, group="steps")
    async def _refresh(self) -> None:
        while self.is_current:
            self._refresh_now.clear()
            client = self._program_client()
            if client is None:
                self._head.update(Text("no program is connected", "bold red"))
            else:
                try:
                    found = await asyncio.to_thread(self._query, client)
                except TelemetryError as error:
                    self._head.update(Text(str(error), "bold red"))
                else:
                    self._show(found)
            try:
                await asyncio.wait_for(self._refresh_now.wait(), self._refresh_s)
            except TimeoutError:
                continue

    def _query(self, client: ProgramClient) -> HeatMap:
        def rows(sql: str, *values: object) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = client.query(sql, list(values))["rows"]
            return found

        self._meshes = trained_meshes(rows)
        if self._mesh not in self._meshes:
            self._mesh = next(iter(self._meshes), "")
        return heat_map(rows, self._mesh)

    def _show(self, found: HeatMap) -> None:
        if not found.ranks:
            self._head.update("no process has taken a training step")
            self._map.update("")
            return
        head = Text(found.mesh, "bold")
        head.append(f"  {len(found.ranks)} ranks, steps {found.steps[0]} to {found.steps[-1]}  ")
        head.append(" slower ", _style(_DELAY_MAX))
        head.append(" faster ", _style(-_DELAY_MAX))
        head.append(" than the median; waits in collectives do not count")
        self._head.update(head)
        ranks = found.ranks
        if self._is_by_delay:
            ranks = sorted(ranks, key=lambda one: -one.delay)
        self._map.update(heat_map_text(ranks, self.size.width))

    def action_next_mesh(self) -> None:
        """Show the next mesh that has trained."""
        if self._meshes:
            at = (self._meshes.index(self._mesh) + 1) % len(self._meshes)
            self._mesh = self._meshes[at]
        self._refresh_now.set()

    def action_by_delay(self) -> None:
        """Order by rank, or the slowest ranks first."""
        self._is_by_delay = not self._is_by_delay
        self._refresh_now.set()

    def action_back(self) -> None:
        """Return to the tree."""
        self.app.pop_screen()


def heat_map_text(ranks: list[RankSteps], width: int) -> Text:
    """Return a line for each rank: its name, its delay and the latest steps.

    Args:
        ranks: The ranks.
        width: The width of the terminal, in characters.
    """
    count = max(width - _LABEL_LEN - 2, _STEPS_MIN)
    text = Text(no_wrap=True)
    for one in ranks:
        label = f"rank {one.rank:<5} {one.host[:16]:<16} {one.delay:>+6.1%} "
        label += f"{one.cause:<10}"
        text.append(f"{label[:_LABEL_LEN]:<{_LABEL_LEN}}", "bold" if one.cause else "")
        for delay in one.delays[-count:]:
            text.append(" ", "" if delay is None else _style(delay))
        text.append("\n")
    return text


def _style(delay: float) -> str:
    """Return the colour of a delay."""
    strength = min(abs(delay) / _DELAY_MAX, 1.0)
    target = _LATE if delay > 0 else _EARLY
    mixed = (
        round(grey + (colour - grey) * strength)
        for grey, colour in zip(_NEUTRAL, target, strict=True)
    )
    return "on rgb({},{},{})".format(*mixed)
