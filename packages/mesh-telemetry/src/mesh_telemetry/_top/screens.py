"""Modal screens: help, confirmation of a stop, and the choice of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from mesh_telemetry._serve.program_files import ServedProgram
    from mesh_telemetry._top.entries import Target

__all__ = ["HelpScreen", "ProgramScreen", "StopScreen"]


class HelpScreen(ModalScreen[None]):
    """Shows the effect of each key."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "dismiss", "Back")]

    def __init__(self, groups: dict[str, Iterable[BindingType]]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        """Create the text."""
        text = Text()
        for title, bindings in self._groups.items():
            text.append(f"{title}\n", "bold")
            for one in bindings:
                assert isinstance(one, Binding), "all of ours are"
                keys = one.key.replace("question_mark", "?").replace("slash", "/")
                text.append(f"  {keys.replace(',', ', '):<24}", "cyan")
                text.append(f"{one.description}\n")
            text.append("\n")
        with VerticalScroll(classes="box"):
            yield Static(text)


class StopScreen(ModalScreen[bool]):
    """Confirms that a mesh is to be stopped."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "choose(True)", "Stop"),
        Binding("n,escape,q", "choose(False)", "Cancel"),
    ]

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target

    def compose(self) -> ComposeResult:
        """Create a question with two buttons."""
        with Vertical(classes="box"):
            yield Static(Text(f"Stop {self._target.title}?\n", "bold"))
            yield Static("Queued messages are processed first. Later calls fail with MeshStopped.")
            with Horizontal():
                yield Button("Cancel (n)", id="no")
                yield Button("Stop (y)", id="yes", variant="error")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Close the screen with the choice."""
        self.dismiss(event.button.id == "yes")

    def action_choose(self, is_yes: bool) -> None:
        """Close the screen with the choice."""
        self.dismiss(is_yes)


class ProgramScreen(ModalScreen["ServedProgram | None"]):
    """Lets the user choose one of several programs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "down", "Down", show=False),
        Binding("k", "up", "Up", show=False),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, found: list[ServedProgram]) -> None:
        super().__init__()
        self._found = found

    def compose(self) -> ComposeResult:
        """Create the list."""
        with Vertical(classes="box"):
            yield Static(Text("Several programs serve telemetry\n", "bold"))
            yield OptionList(
                *(Option(Text(f"{one.pid}  {one.program}")) for one in self._found), id="programs"
            )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close the screen with the choice."""
        self.dismiss(self._found[event.option_index])

    def action_down(self) -> None:
        """Move down."""
        self.query_one(OptionList).action_cursor_down()

    def action_up(self) -> None:
        """Move up."""
        self.query_one(OptionList).action_cursor_up()
