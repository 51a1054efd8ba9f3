"""The SQL screen: an editor, the result, and the history."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import DataTable, Footer, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from mesh_telemetry._errors import TelemetryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from mesh_telemetry._serve.program_client import ProgramClient

__all__ = ["SQL_KEYS", "SqlScreen"]

_TIMEOUT_S = 30.0
_SHOWN_MAX = 1000
_HISTORY_MAX = 100
_CELL_LEN_MAX = 200

SQL_KEYS: list[BindingType] = [
    Binding("f5,ctrl+r", "run", "Run", key_display="F5", priority=True),
    Binding("f2", "history", "History"),
    Binding("escape", "back", "Back"),
]


class SqlScreen(Screen[None]):
    """Runs the query in the editor, and shows the rows or the error.

    Args:
        client: Returns the program, if there is one.
    """

    BINDINGS: ClassVar[list[BindingType]] = SQL_KEYS

    def __init__(self, client: Callable[[], ProgramClient | None]) -> None:
        super().__init__()
        self._program_client = client
        #: Earlier queries, latest first.
        self.history: list[str] = []

    def compose(self) -> ComposeResult:
        """Create an editor and the history above the result."""
        with Horizontal(id="sql-top"):
            yield TextArea("select * from actors limit 20", id="sql")
            yield OptionList(id="history")
        yield Static(id="sql-status")
        with Vertical(id="sql-bottom"):
            yield DataTable(id="result", zebra_stripes=True, cursor_type="row")
        yield Footer()

    def on_mount(self) -> None:
        """Move the focus to the editor."""
        self.query_one("#sql", TextArea).focus()
        self.query_one("#history", OptionList).border_title = "history (F2)"

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Copy a query from the history to the editor."""
        editor = self.query_one("#sql", TextArea)
        editor.text = self.history[event.option_index]
        editor.focus()

    def action_history(self) -> None:
        """Move the focus to the history."""
        history = self.query_one("#history", OptionList)
        history.highlighted = 0 if self.history else None
        history.focus()

    def action_back(self) -> None:
        """Return to the tree."""
        self.app.pop_screen()

    @work(exclusive=True, group="sql")
    async def action_run(self) -> None:
        """Run the query."""
        sql = self.query_one("#sql", TextArea).text.strip()
        status = self.query_one("#sql-status", Static)
        client = self._program_client()
        if client is None:
            status.update(Text("no program is connected", "bold red"))
            return
        self._add_to_history(sql)
        status.update("history")
        began = time.monotonic()
        try:
            result = await asyncio.to_thread(client.query, sql, timeout_s=_TIMEOUT_S)
        except TelemetryError as error:
            status.update(Text(str(error), "bold red"))
            return
        self._show(result)
        status.update(_summary(result, time.monotonic() - began))

    def _add_to_history(self, sql: str) -> None:
        self.history = [sql, *(one for one in self.history if one != sql)][:_HISTORY_MAX]
        history = self.query_one("#history", OptionList)
        history.clear_options()
        history.add_options(Option(Text(" ".join(one.split()))) for one in self.history)

    def _show(self, result: dict[str, Any]) -> None:
        table: DataTable[Text] = self.query_one("#result", DataTable)
        table.clear(columns=True)
        for name in result["columns"]:
            table.add_column(Text(name))
        for row in result["rows"][:_SHOWN_MAX]:
            table.add_row(*(_cell(row[name]) for name in result["columns"]))


def _cell(value: Any) -> Text:
    if value is None:
        return Text("null", "dim")
    text = value if isinstance(value, str) else json.dumps(value)
    return Text(text.replace("\n", "⏎")[:_CELL_LEN_MAX])


def _summary(result: dict[str, Any], took_s: float) -> Text:
    rows, coverage = len(result["rows"]), result["coverage"]
    text = Text(f"{rows} rows in {took_s * 1e3:.0f} ms")
    if rows > _SHOWN_MAX:
        text.append(f", showing the first {_SHOWN_MAX}")
    text.append(f"; {len(coverage['replied'])} of {len(coverage['queried'])} hosts replied")
    for failure in coverage["failed"]:
        text.append(f"\nhost {failure['host']} did not reply: {failure['cause']}", "bold yellow")
    return text
