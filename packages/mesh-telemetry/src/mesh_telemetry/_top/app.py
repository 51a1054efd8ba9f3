"""The terminal interface: a tree of the program, and details of the selected entry."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import work
from textual.app import App
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Footer, Input, Static, TabbedContent, TabPane, TextArea

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._hangs.tables import hang_line
from mesh_telemetry._serve.program_client import ProgramClient, ProgramUnavailable, is_process_alive
from mesh_telemetry._serve.program_files import ServedProgram, served_programs
from mesh_telemetry._serve.scopes import Scope
from mesh_telemetry._top.details import DETAILS
from mesh_telemetry._top.entries import PAGE_LEN, SORTS, Target, TreeModel, View
from mesh_telemetry._top.refresh import fetch_model
from mesh_telemetry._top.screens import HelpScreen, ProgramScreen, StopScreen
from mesh_telemetry._top.sql_screen import SQL_KEYS, SqlScreen
from mesh_telemetry._top.steps_screen import STEPS_KEYS, StepsScreen
from mesh_telemetry._top.tree import TREE_KEYS, EntryTree, heading

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.widgets import Tree

    from mesh_telemetry._top.entries import Entry

__all__ = ["Top"]

_REQUESTER = "mesh top"
# Seconds that the cursor must rest on an entry before its details are queried.
_REST_S = 0.15
_PROGRAM_LEN_MAX = 40
_TAB_ON_DEMAND = "Stacks"
# The number of hangs that are described in the status.
_HANGS_MAX = 4

ACTIONS: list[BindingType] = [
    Binding("q", "quit", "Quit"),
    Binding("question_mark", "help", "Help", key_display="?"),
    Binding("slash", "filter", "Filter", key_display="/", priority=True),
    Binding("o", "sort", "Sort"),
    Binding("m", "by_mesh", "By mesh or host"),
    Binding("h", "stopped", "Hide stopped"),
    Binding("s", "system", "Show system"),
    Binding("r", "refresh", "Refresh"),
    Binding("x", "stop", "Stop"),
    Binding("S,colon", "sql", "SQL", key_display="S"),
    Binding("t", "steps", "Training steps"),
    Binding("d", "details", "Details"),
    *(Binding(str(at), f"tab('{name}')", name, show=False) for at, name in enumerate(DETAILS, 1)),
    Binding("l", "log_filter", "Filter logs"),
    Binding("f", "follow", "Follow logs"),
    Binding("escape", "to_tree", "Back to the tree", show=False),
]


# Keys that move the focus have priority: the app handles them before it forwards the next key.
# Otherwise the next key could reach the widget that is about to lose the focus.
_SUBMIT = Binding("enter", "submit_filter", show=False, priority=True)
# Actions that are also available on other screens.
_ANYWHERE = ("quit", "help")


def _bindings(found: list[BindingType]) -> list[Binding]:
    return [one for one in found if isinstance(one, Binding)]


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


class ScrollableText(VerticalScroll):
    """A scrollable text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "Down", show=False),
        Binding("k", "scroll_up", "Up", show=False),
        Binding("g", "scroll_home", "First", show=False),
        Binding("G", "scroll_end", "Last", show=False),
    ]


class Top(App[None]):
    """Shows a program that serves telemetry until the user quits.

    Args:
        pid: The program to show first; any program if None.
        refresh_s: Seconds between two queries.
    """

    TITLE = "mesh top"
    CSS_PATH = "style.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [*ACTIONS, _SUBMIT]

    def __init__(self, pid: int | None, refresh_s: float) -> None:
        super().__init__()
        self._pid = pid
        self._refresh_s = refresh_s
        self._program_client: ProgramClient | None = None
        self._disconnect_reason = ""
        self._refresh_now = asyncio.Event()
        self._is_detailing = False
        self._is_following = True
        # These widgets are kept, because results are written to them while another screen is on
        # top.
        self._head = Static(id="head")
        self._status = Static(id="status")
        self._heading = Static(id="heading")
        self._tree = EntryTree()
        self._filter = Input(placeholder="name or class", id="filter")
        self._log_filter = Input(placeholder="text in log lines", id="log-filter")
        self._tabs = TabbedContent(id="right")
        self._scrollables = {name: ScrollableText(id=f"pane-{name}") for name in DETAILS}
        self._texts = {name: Static(id=f"text-{name}") for name in DETAILS}
        self._sql = SqlScreen(lambda: self._program_client)
        self._steps = StepsScreen(lambda: self._program_client, refresh_s)
        self.view: View = View()
        self.model: TreeModel | None = None

    def compose(self) -> ComposeResult:
        """Create a head line, an error line, the tree, and the tabs."""
        yield self._head
        yield self._status
        with Horizontal():
            with Vertical(id="left"):
                yield self._heading
                yield self._tree
                yield self._filter
            with self._tabs:
                for name in DETAILS:
                    with TabPane(name, id=f"tab-{name}"):
                        if name == "Logs":
                            yield self._log_filter
                        with self._scrollables[name]:
                            yield self._texts[name]
        yield Footer()

    def on_mount(self) -> None:
        """Start querying."""
        self._filter.display = False
        self._tree.focus()
        self._refresh_loop()

    def on_unmount(self) -> None:
        """Close the connection; pending queries fail."""
        if self._program_client is not None:
            self._program_client.close()

    def on_resize(self, event: events.Resize) -> None:
        """Align the heading with the columns."""
        width = event.size.width // 2 - 2
        self._heading.update(heading(width))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key is active: on other screens, keys for this screen are not.

        Keys that are typed into a text are not active either.
        """
        if action == "submit_filter":
            return self.focused in (self._filter, self._log_filter)
        if action == "filter" and isinstance(self.focused, Input | TextArea):
            return False
        is_ours = any(one.action.partition("(")[0] == action for one in _bindings(ACTIONS))
        return not is_ours or action in _ANYWHERE or len(self.screen_stack) == 1

    @work(group="refresh")
    async def _refresh_loop(self) -> None:
        while True:
            self._refresh_now.clear()
            began = time.monotonic()
            if self._program_client is None:
                await self._find_program()
            if self._program_client is not None:
                await self._update_model(self._program_client)
            # A slow program is not queried all the time.
            pause_s = max(self._refresh_s, time.monotonic() - began)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._refresh_now.wait(), pause_s)

    async def _update_model(self, client: ProgramClient) -> None:
        before = None if self.model is None else self.model.snapshot
        view, branches = self.view, self._tree.open_actors()
        try:
            model = await asyncio.to_thread(fetch_model, client, before, view, branches)
        except ProgramUnavailable as error:
            self._disconnect(client, str(error))
            return
        except TelemetryError as error:
            self._set_status(str(error))
            return
        self.model = model
        snapshot = model.snapshot
        self._set_status(
            "\n".join(
                [
                    *map(hang_line, snapshot.hangs[:_HANGS_MAX]),
                    *(
                        f"host {host} did not reply: {cause}"
                        for host, cause in snapshot.unresponsive_hosts.items()
                    ),
                ]
            )
        )
        self._show()
        if not self._is_detailing and self._tab != _TAB_ON_DEMAND:
            self._detail(0.0)

    def _disconnect(self, client: ProgramClient, why: str) -> None:
        client.close()
        if self._program_client is client:
            self._program_client, self._pid = None, None
            self._disconnect_reason = f"{why}; "
            self._tree.add_class("disconnected")

    async def _find_program(self) -> None:
        """Find a program; let the user choose if there are several."""
        try:
            found = await asyncio.to_thread(served_programs)
        except TelemetryError as error:
            self._set_status(str(error))
            return
        found = [one for one in found if is_process_alive(one.pid) and self._pid in (None, one.pid)]
        if len(found) == 1:
            self._connect(found[0])
        elif found and not isinstance(self.screen, ProgramScreen):
            self.push_screen(ProgramScreen(found), self._connect)
        elif not found:
            which = "a program" if self._pid is None else f"program {self._pid}"
            self._set_status(
                f"{self._disconnect_reason}waiting for {which} of this user that serves telemetry"
            )

    def _connect(self, served: ServedProgram | None) -> None:
        if served is None:
            return
        self._program_client, self.model, self._disconnect_reason = ProgramClient(served), None, ""
        self._tree.clear_all()
        self._tree.remove_class("disconnected")
        self._set_status("")
        self._refresh_now.set()

    def _show(self) -> None:
        if self.model is None or self._program_client is None:
            return
        snapshot = self.model.snapshot
        self._tree.show(self.model, self.view)
        served = self._program_client.served
        alive = [one for one in snapshot.procs.values() if not one.is_over]
        actors = sum(sum(one.actors.values()) for one in alive)
        program = served.program
        short = program if len(program) <= _PROGRAM_LEN_MAX else f"…{program[-_PROGRAM_LEN_MAX:]}"
        text = Text(f"{served.pid} {short}  ")
        text.append(f"{len(snapshot.hosts)} hosts, {len(alive)} processes, {actors} actors")
        if snapshot.failures:
            text.append(f"  {_counted(len(snapshot.failures), 'failure')}", "bold red")
        if snapshot.hangs:
            text.append(f"  {_counted(len(snapshot.hangs), 'hang')}", "bold red")
        if snapshot.deadlocks:
            text.append(f"  {_counted(len(snapshot.deadlocks), 'deadlock')}", "bold magenta")
        view = self.view
        if view.sort != "name":
            text.append(f"  by {view.sort}", "dim")
        if view.wanted:
            text.append(f"  matching {view.wanted!r}", "bold yellow")
        if view.are_stopped_hidden:
            text.append("  stopped hidden", "dim")
        self._head.update(text)

    def _set_status(self, text: str) -> None:
        self._status.update(Text(text))
        self._status.set_class(bool(text), "shown")

    def _set_view(self, view: View) -> None:
        """Change the view, show the known entries, and query the rest."""
        self.view = view
        self._show()
        self._refresh_now.set()

    @property
    def _tab(self) -> str:
        return self._tabs.active.removeprefix("tab-")

    @work(exclusive=True, group="detail")
    async def _detail(self, rest_s: float) -> None:
        """Query the details of the selected entry for the visible tab."""
        self._is_detailing = True
        try:
            await asyncio.sleep(rest_s)
            entry, tab = self._tree.current, self._tab
            client, model = self._program_client, self.model
            if entry is None or client is None or model is None or entry.kind == "more":
                return
            wanted = self._log_filter.value
            try:
                details = DETAILS[tab]
                text = await asyncio.to_thread(details, client, model, entry, wanted)
            except TelemetryError as error:
                text = Text(str(error), "bold red")
            self._texts[tab].update(text)
            if tab == "Logs" and self._is_following:
                self._scrollables["Logs"].scroll_end(animate=False)
        finally:
            self._is_detailing = False

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Entry]) -> None:
        """Query the details of the entry under the cursor."""
        self._detail(_REST_S)

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[Entry]) -> None:
        """Query the entries below."""
        self._show()
        self._refresh_now.set()

    def on_tree_node_selected(self, event: Tree.NodeSelected[Entry]) -> None:
        """Show more of a long branch."""
        entry = event.node.data
        if entry is not None and entry.kind == "more":
            shown = self._tree.len_max
            branch = entry.row["of"]
            shown[branch] = shown.get(branch, PAGE_LEN) + PAGE_LEN
            self._show()
            self._refresh_now.set()

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Query the details for the new tab."""
        self._detail(0.0)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Apply the filter as it is typed."""
        if event.input.id == "filter":
            self._set_view(replace(self.view, wanted=event.value.strip()))
        else:
            self._detail(_REST_S)

    def action_help(self) -> None:
        """Show the effect of each key."""
        self.push_screen(
            HelpScreen(
                {
                    "Everywhere": ACTIONS,
                    "In the tree": TREE_KEYS,
                    "In SQL": SQL_KEYS,
                    "In training steps": STEPS_KEYS,
                }
            )
        )

    def action_filter(self) -> None:
        """Filter entries by name."""
        self._filter.display = True
        # The focus moves immediately, because the next key belongs to the filter.
        self.screen.set_focus(self._filter)

    def action_submit_filter(self) -> None:
        """Return from a filter to the tree or to the lines."""
        if self.focused is self._filter:
            self.screen.set_focus(self._tree)
            self._filter.display = False
        else:
            self.screen.set_focus(self._scrollables["Logs"])

    def action_to_tree(self) -> None:
        """Return to the tree; from its filter, also clear the filter."""
        if self._filter.has_focus or (self._tree.has_focus and self.view.wanted):
            self._filter.value = ""
            self._filter.display = False
        self.screen.set_focus(self._tree)

    def action_sort(self) -> None:
        """Sort by the next measure."""
        at = (SORTS.index(self.view.sort) + 1) % len(SORTS)
        self._set_view(replace(self.view, sort=SORTS[at]))

    def action_by_mesh(self) -> None:
        """Switch between meshes, and hosts with their processes."""
        self._set_view(replace(self.view, is_by_mesh=not self.view.is_by_mesh))

    def action_stopped(self) -> None:
        """Hide or show the entries that have exited normally."""
        self._set_view(replace(self.view, are_stopped_hidden=not self.view.are_stopped_hidden))

    def action_system(self) -> None:
        """Show or hide the processes that manage hosts."""
        self._set_view(replace(self.view, is_system_shown=not self.view.is_system_shown))

    def action_refresh(self) -> None:
        """Query everything now."""
        self._refresh_now.set()
        self._detail(0.0)

    def action_sql(self) -> None:
        """Open the SQL screen."""
        self.push_screen(self._sql)

    def action_steps(self) -> None:
        """Open the heat map of training steps."""
        self.push_screen(self._steps)

    def action_details(self) -> None:
        """Move the focus to the details."""
        self._scrollables[self._tab].focus()

    def action_tab(self, name: str) -> None:
        """Show a tab."""
        self._tabs.active = f"tab-{name}"

    def action_log_filter(self) -> None:
        """Filter log lines by a text."""
        self._tabs.active = "tab-Logs"
        self._log_filter.focus()

    def action_follow(self) -> None:
        """Turn following the end of the logs on or off."""
        self._is_following = not self._is_following
        self.notify("following logs" if self._is_following else "no longer following logs")

    def action_stop(self) -> None:
        """Stop the mesh of the selected entry after confirmation."""
        entry = self._tree.current
        if entry is None or self.model is None:
            return
        target = self.model.target(entry)
        if isinstance(target, str):
            self.notify(target, severity="warning")
            return

        def stop(is_wanted: bool | None) -> None:
            if is_wanted:
                self._stop(target)

        self.push_screen(StopScreen(target), stop)

    @work(group="stop")
    async def _stop(self, target: Target) -> None:
        client = self._program_client
        if client is None:
            self.notify("no program is connected", severity="error")
            return
        request = {"mesh_id": target.mesh_id, "proc": target.proc, "by": _REQUESTER}
        try:
            await asyncio.to_thread(client.post, "/stop", request, timeout_s=15.0, scope=Scope.ACT)
        except TelemetryError as error:
            self.notify(str(error), title="not stopped", severity="error", markup=False)
        else:
            self.notify(f"stops: {target.title}", markup=False)
        self._refresh_now.set()
