"""The tree on the left: entries coloured by state, with their measures."""

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

    from mesh_telemetry._top.entries import TreeModel, View

__all__ = ["COLOURS", "SIGNS", "TREE_KEYS", "EntryTree", "bar", "heading"]

COLOURS = {
    "running": "green",
    "waiting": "yellow",
    "stopped": "bright_black",
    "failed": "bold red",
    "deadlock": "bold magenta",
    "plain": "",
}
#: The signs of states, so that none is shown by colour alone.
SIGNS = {"failed": "✕ ", "deadlock": "⟳ ", "stopped": "■ ", "waiting": "‖ "}
_BAR_LEN = 6
_EIGHTHS = " ▏▎▍▌▋▊▉"
_HIGH = 0.9
_MEASURES_LEN = 24 + _BAR_LEN
_NOTE_LEN_MIN = 8

#: Keys of the tree, as listed in the help; an action may have several.
TREE_KEYS: list[BindingType] = [
    Binding("j,down", "cursor_down", "Down", show=False),
    Binding("k,up", "cursor_up", "Up", show=False),
    Binding("g,home", "first", "First", show=False),
    Binding("G,end", "last", "Last", show=False),
    Binding("ctrl+d,pagedown", "page_down", "Page down", show=False),
    Binding("ctrl+u,pageup", "page_up", "Page up", show=False),
    Binding("right", "open", "Open", show=False),
    Binding("left", "shut", "Collapse, or go to the parent", show=False),
    Binding("enter,space,tab", "select_cursor", "Expand or collapse", key_display="Tab"),
    Binding("c", "close_all", "Close all", show=False),
]


def heading(width: int) -> str:
    """Return the line above the tree."""
    return (
        set_cell_size("", max(width - _MEASURES_LEN + _BAR_LEN, 0))
        + f"{'CPU%':>7}{'MEMORY':>9}{'MSG/S':>8}"
    )


class EntryTree(Tree[Entry]):
    """Shows the entries of `children`, and keeps open branches and the cursor across updates."""

    BINDINGS: ClassVar[list[BindingType]] = TREE_KEYS

    def __init__(self) -> None:
        super().__init__("", id="tree")
        self.show_root = False
        self.guide_depth = 2
        # Handled below, because a node may be replaced between a key and the message that it
        # causes.
        self.auto_expand = False
        self._by_key: dict[Key, TreeNode[Entry]] = {}
        # Branches that were shown before, open or closed.
        self._hosts: set[Key] = set()
        self._expanded_keys: set[Key] = set()
        #: The number of entries to show, by branch.
        self.len_max: dict[Key, int] = {}

    @property
    def current(self) -> Entry | None:
        """The entry under the cursor."""
        node = self.cursor_node
        return None if node is None else node.data

    def open_actors(self) -> dict[Key, int]:
        """Return the open branches whose actors must be queried, and how many of each."""
        return {
            key: self.len_max.get(key, PAGE_LEN)
            for key, node in self._by_key.items()
            if key[0] in ("proc", "mesh") and node.is_expanded
        }

    def show(self, model: TreeModel, view: View) -> None:
        """Show the current state of a program."""
        before = None if self.current is None else self.current.key
        at = self.cursor_line
        self._fill(self.root, None, model, view)
        self._restore_cursor(before, at)

    def clear_all(self) -> None:
        """Clear the tree before another program is shown."""
        self.root.remove_children()
        self._by_key.clear()
        self._hosts.clear()
        self._expanded_keys.clear()
        self.len_max.clear()

    def _fill(
        self, node: TreeNode[Entry], parent: Entry | None, model: TreeModel, view: View
    ) -> None:
        top: Key = ("procs", "all")
        len_max = self.len_max.get(top if parent is None else parent.key, PAGE_LEN)
        wanted = children(model, view, parent, len_max)
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
                self._fill(child, entry, model, view)

    def _replace(self, node: TreeNode[Entry], wanted: list[Entry]) -> None:
        self._remove_nodes(node)
        node.remove_children()
        for entry in wanted:
            # Hosts are open initially.
            is_new = entry.key not in self._hosts
            expand = entry.key in self._expanded_keys or (entry.kind == "host" and is_new)
            if entry.kind == "host":
                self._hosts.add(entry.key)
            child = node.add("", entry, expand=expand, allow_expand=entry.is_branch)
            self._by_key[entry.key] = child

    def _remove_nodes(self, node: TreeNode[Entry]) -> None:
        for child in node.children:
            self._remove_nodes(child)
            if child.data is not None:
                # The entry may reappear when the filter changes.
                note = self._expanded_keys.add if child.is_expanded else self._expanded_keys.discard
                note(child.data.key)
            if child.data is not None and self._by_key.get(child.data.key) is child:
                del self._by_key[child.data.key]

    def _restore_cursor(self, key: Key | None, otherwise: int) -> None:
        """Keep the cursor on its entry wherever that is now, or on its line."""
        # Reading the last line updates the line numbers, also for new lines.
        last = self.last_line
        node = None if key is None else self._by_key.get(key)
        line = otherwise if node is None or node.line < 0 else node.line
        line = max(0, min(line, last))
        if line != self.cursor_line:
            self.cursor_line = line
        elif self.get_node_at_line(line) is not self.cursor_node:
            # Another entry has moved to the line of the cursor.
            self.watch_cursor_line(line, line)

    def render_label(self, node: TreeNode[Entry], base_style: Style, style: Style) -> Text:
        """Format an entry: its title, its note, and its measures."""
        entry = node.data
        if entry is None:
            return Text()
        depth, above = 0, node.parent
        while above is not None:
            depth, above = depth + 1, above.parent
        sign = ("▼ " if node.is_expanded else "▶ ") if node.allow_expand else "  "
        width = max(self.size.width - 1 - self.guide_depth * (depth - 1), 20)
        measures = _measures(entry)
        text_len_max = width - (_MEASURES_LEN if measures else 0)
        text = Text(sign, style=base_style)
        text.append(SIGNS.get(entry.state, "") + entry.title, COLOURS[entry.state])
        left = text_len_max - cell_len(text.plain) - 1
        if entry.note and left >= _NOTE_LEN_MIN:
            text.append(" " + entry.note, "dim")
        plain_len = cell_len(text.plain)
        if plain_len > text_len_max:
            text.truncate(text_len_max, overflow="ellipsis")
        elif measures:
            text.append(" " * (text_len_max - plain_len))
        if measures:
            colour = "yellow" if (entry.load or 0) > _HIGH else "cyan"
            text.append(bar(entry.load), f"{colour} on grey23" if entry.load is not None else "")
        text.append(measures)
        text.stylize(style, 0, 0)
        if node is self.cursor_node and self.has_focus:
            text.stylize(style)
        elif node is self.cursor_node:
            text.stylize("underline")
        return text

    def on_tree_node_selected(self, event: Tree.NodeSelected[Entry]) -> None:
        """Toggle the selected branch, even if the tree was rebuilt since the key was pressed."""
        entry = event.node.data
        if entry is None or not entry.is_branch:
            return
        node = self._by_key.get(entry.key)
        if node is None:
            # The branch is not shown now; the new state applies when it reappears.
            self._expanded_keys ^= {entry.key}
        else:
            node.toggle()

    def action_first(self) -> None:
        """Move to the first line."""
        self.cursor_line = 0

    def action_last(self) -> None:
        """Move to the last line."""
        self.cursor_line = self.last_line

    def action_open(self) -> None:
        """Open the branch under the cursor."""
        if self.cursor_node is not None and self.cursor_node.allow_expand:
            self.cursor_node.expand()

    def action_shut(self) -> None:
        """Close the branch under the cursor, or move to its parent."""
        node = self.cursor_node
        if node is None:
            return
        if node.is_expanded and node.allow_expand:
            node.collapse()
        elif node.parent is not None and node.parent is not self.root:
            self.cursor_line = node.parent.line

    def action_close_all(self) -> None:
        """Close all branches except hosts."""
        for key, node in self._by_key.items():
            if key[0] != "host":
                node.collapse()


def bar(part: float | None, length: int = _BAR_LEN) -> str:
    """Return a bar of block characters for a part of a whole.

    Example:
        >>> bar(0.5, 4)
        '██  '
    """
    eighths = round(min(max(part or 0.0, 0.0), 1.0) * length * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(length)


def _measures(entry: Entry) -> str:
    if entry.measures is None:
        return ""
    cpu, memory, messages = entry.measures
    status = "-" if cpu is None else f"{cpu:.1f}"
    size = "-" if memory is None else _size(memory)
    return f"{status:>7}{size:>9}{'-' if messages is None else f'{messages:.1f}':>8}"


def _size(length: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if length < 1000:
            return f"{length:.0f} {unit}" if length >= 10 or unit == "B" else f"{length:.1f} {unit}"
        length /= 1000
    return f"{length:.1f} TB"
