"""The tree on the left: what there is, coloured by state, with what it takes beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from textual.binding import Binding
from textual.widgets import Tree

from mesh_telemetry._top.entries import PAGE_LEN, Entry, Key, children

if TYPE_CHECKING:
    from rich.style import Style
    from textual.binding import BindingType
    from textual.widgets.tree import TreeNode

    from mesh_telemetry._top.entries import Picture, View

__all__ = ["COLOURS", "MOVES", "EntryTree", "heading"]

COLOURS = {
    "running": "green",
    "waiting": "yellow",
    "stopped": "bright_black",
    "failed": "bold red",
    "deadlock": "bold magenta",
    "plain": "",
}
_MEASURES_LEN = 24
_NOTE_LEN_MIN = 8

#: Keys of the tree, as they are told of in the help: an action may have several.
MOVES: list[BindingType] = [
    Binding("j,down", "cursor_down", "Down", show=False),
    Binding("k,up", "cursor_up", "Up", show=False),
    Binding("g,home", "first", "First", show=False),
    Binding("G,end", "last", "Last", show=False),
    Binding("ctrl+d,pagedown", "page_down", "Page down", show=False),
    Binding("ctrl+u,pageup", "page_up", "Page up", show=False),
    Binding("right", "open", "Open", show=False),
    Binding("left", "shut", "Close, or to what is above", show=False),
    Binding("enter,space,tab", "select_cursor", "Open or close", key_display="Tab"),
    Binding("c", "close_all", "Close all", show=False),
]


def heading(width: int) -> str:
    """Gives the line over the tree."""
    return (
        set_cell_size("", max(width - _MEASURES_LEN, 0)) + f"{'CPU%':>7}{'MEMORY':>9}{'MSG/S':>8}"
    )


class EntryTree(Tree[Entry]):
    """Shows what `children` gives, and keeps what is open and where the cursor is."""

    BINDINGS: ClassVar[list[BindingType]] = MOVES

    def __init__(self) -> None:
        super().__init__("", id="tree")
        self.show_root = False
        self.guide_depth = 2
        # Done below: a node may be replaced between a key and the message that it causes.
        self.auto_expand = False
        self._by_key: dict[Key, TreeNode[Entry]] = {}
        # Those that were there before, open or not.
        self._hosts: set[Key] = set()
        self._was_open: set[Key] = set()
        #: Of each branch, how many entries are shown.
        self.len_max: dict[Key, int] = {}

    @property
    def current(self) -> Entry | None:
        """Where the cursor is."""
        node = self.cursor_node
        return None if node is None else node.data

    def open_actors(self) -> dict[Key, int]:
        """Gives the open branches whose actors have to be asked for, and how many of each."""
        return {
            key: self.len_max.get(key, PAGE_LEN)
            for key, node in self._by_key.items()
            if key[0] in ("proc", "mesh") and node.is_expanded
        }

    def show(self, picture: Picture, view: View) -> None:
        """Shows a program as it is now."""
        before = None if self.current is None else self.current.key
        at = self.cursor_line
        self._fill(self.root, None, picture, view)
        self._go(before, at)

    def clear_all(self) -> None:
        """Forgets all: another program is looked at."""
        self.root.remove_children()
        self._by_key.clear()
        self._hosts.clear()
        self._was_open.clear()
        self.len_max.clear()

    def _fill(
        self, node: TreeNode[Entry], parent: Entry | None, picture: Picture, view: View
    ) -> None:
        top: Key = ("procs", "all")
        len_max = self.len_max.get(top if parent is None else parent.key, PAGE_LEN)
        wanted = children(picture, view, parent, len_max)
        shown = [child.data.key for child in node.children if child.data is not None]
        if shown != [entry.key for entry in wanted]:
            self._replace(node, wanted)
        for child, entry in zip(node.children, wanted, strict=True):
            if child.data != entry:
                child.data = entry
                child.refresh()
            if entry.is_branch != child.allow_expand:
                child.allow_expand = entry.is_branch
            if child.is_expanded and entry.is_branch:
                self._fill(child, entry, picture, view)

    def _replace(self, node: TreeNode[Entry], wanted: list[Entry]) -> None:
        self._forget(node)
        node.remove_children()
        for entry in wanted:
            # What is a host is open at first.
            is_new = entry.key not in self._hosts
            expand = entry.key in self._was_open or (entry.kind == "host" and is_new)
            if entry.kind == "host":
                self._hosts.add(entry.key)
            child = node.add("", entry, expand=expand, allow_expand=entry.is_branch)
            self._by_key[entry.key] = child

    def _forget(self, node: TreeNode[Entry]) -> None:
        for child in node.children:
            self._forget(child)
            if child.data is not None:
                # It may come back, when something else is looked for.
                note = self._was_open.add if child.is_expanded else self._was_open.discard
                note(child.data.key)
            if child.data is not None and self._by_key.get(child.data.key) is child:
                del self._by_key[child.data.key]

    def _go(self, key: Key | None, otherwise: int) -> None:
        """Has the cursor stay on what it was on, wherever that is now; or where it was."""
        # Asking for the last line has all lines counted, with what has just been added.
        last = self.last_line
        node = None if key is None else self._by_key.get(key)
        line = otherwise if node is None or node.line < 0 else node.line
        line = max(0, min(line, last))
        if line != self.cursor_line:
            self.cursor_line = line
        elif self.get_node_at_line(line) is not self.cursor_node:
            # Another line has come to where the cursor is.
            self.watch_cursor_line(line, line)

    def render_label(self, node: TreeNode[Entry], base_style: Style, style: Style) -> Text:
        """Writes an entry: its title, what else is to be said, and what it takes."""
        entry = node.data
        if entry is None:
            return Text()
        depth, above = 0, node.parent
        while above is not None:
            depth, above = depth + 1, above.parent
        sign = ("▼ " if node.is_expanded else "▶ ") if node.allow_expand else "  "
        width = max(self.size.width - 1 - self.guide_depth * (depth - 1), 20)
        measures = _measures(entry)
        room = width - (_MEASURES_LEN if measures else 0)
        text = Text(sign, style=base_style)
        text.append(entry.title, COLOURS[entry.state])
        left = room - cell_len(text.plain) - 1
        if entry.note and left >= _NOTE_LEN_MIN:
            text.append(" " + entry.note, "dim")
        plain_len = cell_len(text.plain)
        if plain_len > room:
            text.truncate(room, overflow="ellipsis")
        elif measures:
            text.append(" " * (room - plain_len))
        text.append(measures)
        text.stylize(style, 0, 0)
        if node is self.cursor_node and self.has_focus:
            text.stylize(style)
        elif node is self.cursor_node:
            text.stylize("underline")
        return text

    def on_tree_node_selected(self, event: Tree.NodeSelected[Entry]) -> None:
        """Opens or closes the branch that was selected, also if the tree was rebuilt since."""
        entry = event.node.data
        if entry is None or not entry.is_branch:
            return
        node = self._by_key.get(entry.key)
        if node is None:
            # It is not shown at the moment: it will be as the key left it.
            self._was_open ^= {entry.key}
        else:
            node.toggle()

    def action_first(self) -> None:
        """Goes to the first line."""
        self.cursor_line = 0

    def action_last(self) -> None:
        """Goes to the last line."""
        self.cursor_line = self.last_line

    def action_open(self) -> None:
        """Opens what the cursor is on."""
        if self.cursor_node is not None and self.cursor_node.allow_expand:
            self.cursor_node.expand()

    def action_shut(self) -> None:
        """Closes what the cursor is on, or goes to what is above."""
        node = self.cursor_node
        if node is None:
            return
        if node.is_expanded and node.allow_expand:
            node.collapse()
        elif node.parent is not None and node.parent is not self.root:
            self.cursor_line = node.parent.line

    def action_close_all(self) -> None:
        """Closes all but hosts."""
        for key, node in self._by_key.items():
            if key[0] != "host":
                node.collapse()


def _measures(entry: Entry) -> str:
    if entry.measures is None:
        return ""
    cpu, memory, messages = entry.measures
    said = "-" if cpu is None else f"{cpu:.1f}"
    size = "-" if memory is None else _size(memory)
    return f"{said:>7}{size:>9}{'-' if messages is None else f'{messages:.1f}':>8}"


def _size(length: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if length < 1000:
            return f"{length:.0f} {unit}" if length >= 10 or unit == "B" else f"{length:.1f} {unit}"
        length /= 1000
    return f"{length:.1f} TB"
