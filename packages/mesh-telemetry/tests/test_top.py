"""`mesh top` shows a real program: its tree, and the content of each tab."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.events import Key
from textual.widgets import DataTable, Footer, Input, OptionList, Static, TextArea
from top_pilot import top
from top_program import Program, program

from mesh_telemetry._top.app import ACTIONS
from mesh_telemetry._top.tree import TREE_KEYS


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A program on two hosts with a failed actor and two actors in a deadlock."""
    made = Path(tempfile.mkdtemp(prefix="tel-", dir="/dev/shm"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        try:
            with program(made, hosts=1) as started:
                started.do("say good morning")
                started.do("fail no more data")
                started.do("lock")
                yield started
            assert list(made.iterdir()) == []
        finally:
            shutil.rmtree(made, ignore_errors=True)


async def test_the_tree_has_hosts_processes_and_actors(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.until(lambda: "far[0]" in person.titles())
        hosts = [one for one in person.entries() if one.kind == "host"]
        assert [one.key[1] for one in hosts] == ["0", "1"]
        assert "root" in person.titles()
        assert "agent" not in person.titles()
        await person.go("office[0]")
        await person.press("right")
        await person.until(lambda: "boss[0]" in person.titles("running"))
        await person.press("left")
        await person.until(lambda: "boss[0]" not in person.titles())
        measures = next(one for one in person.entries() if one.title == "office[0]").measures
        assert measures is not None
        assert (measures[1] or 0) > 1_000_000
        await person.until(lambda: "1 failure" in person.text("head"))
        assert "1 deadlock" in person.text("head")
        assert "2 hosts" in person.text("head")


async def test_states_have_their_colours(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.until(lambda: "team[0]" in person.titles("failed"))
        await person.until(lambda: {"pair[0]", "pair[1]"} <= set(person.titles("deadlock")))
        assert "team[1]" in person.titles("running")
        await person.go("team[0]")
        await person.press("tab")
        await person.until(lambda: "trainers[0]" in person.titles("failed"))


async def test_a_branch_opens_when_the_tree_is_rebuilt_right_after_the_key(
    troubled: Program,
) -> None:
    async with top(troubled.pid) as person:
        await person.go("team[1]")
        tree = person.app._tree
        tree.action_select_cursor()
        # Before the message is handled, all nodes are replaced.
        tree.clear_all()
        person.app._show()
        await person.until(lambda: "trainers[1]" in person.titles())


async def test_info_says_why_an_actor_has_failed(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.go("team[0]")
        await person.press("right")
        await person.go("trainers[0]")
        await person.until(lambda: person.tab("Info").startswith("trainers[0]"))
        said = person.tab("Info")
        assert "ValueError: no more data" in said
        assert "caused by OSError: the disk is gone" in said
        assert said.index("stopped\n") < said.index("failed  ") < said.index("running\n")


async def test_logs_are_followed_and_filtered(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.go("team[1]")
        await person.press("3")
        await person.until(lambda: "good morning" in person.tab("Logs"))
        assert "hello" in person.tab("Logs")
        await person.press("l")
        await person.write("good")
        await person.until(lambda: "hello" not in person.tab("Logs"))
        assert "good morning" in person.tab("Logs")
        await person.press("escape", "f", "f")
        troubled.do("say good evening")
        await person.go("team[1]")
        await person.until(lambda: "good evening" in person.tab("Logs"))


async def test_the_messages_tab_shows_rates_and_the_latest_messages(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.go("team[1]")
        await person.press("2")
        troubled.do("say something")
        await person.until(lambda: "trainers in 0." in person.tab("Messages"))
        await person.until(lambda: "none in the last" not in person.tab("Messages"))


async def test_the_stacks_tab_shows_the_running_code(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.go("pair[0]")
        await person.press("4")
        await person.until(lambda: "Trainer.ask" in person.tab("Stacks"))
        assert "top_program.py:" in person.tab("Stacks")


async def test_a_deadlock_is_named(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.press("5")
        await person.until(lambda: "deadlock: " in person.tab("Waits"))
        said = person.tab("Waits")
        assert "left[0] waits for right[0]" in said
        assert "left[0] in ask waits for answer of right[0]" in said


async def test_the_spans_tab_shows_spans_with_their_fields(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.go("team[1]")
        await person.press("right", "6")
        await person.go("trainers[1]")
        await person.until(lambda: "saying" in person.tab("Spans"))
        assert '"text": "hello"' in person.tab("Spans").replace('":"', '": "')


async def test_the_filter_shows_only_matching_entries(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.until(lambda: "office[0]" in person.titles())
        await person.press("slash")
        await person.write("left")
        await person.until(lambda: [t for t in person.titles() if "[" in t] == ["pair[0]"])
        await person.press("enter")
        await person.go("pair[0]")
        await person.press("right")
        await person.until(lambda: "left[0]" in person.titles())
        await person.press("escape")
        await person.until(lambda: "office[0]" in person.titles())


async def test_queued_keys_go_to_the_widget_that_is_focused_by_then(
    troubled: Program,
) -> None:
    """All keys are already queued, as when a user types while the program is busy."""
    async with top(troubled.pid) as person:
        await person.until(lambda: "office[0]" in person.titles())
        for key in ["slash", *"left", "enter", "g", "j"]:
            person.app.post_message(Key(key, key if len(key) == 1 else None))
        await person.until(lambda: [t for t in person.titles() if "[" in t] == ["pair[0]"])
        await person.until(lambda: (one := person.tree.current) and one.title == "pair[0]")
        assert person.app.query_one("#filter", Input).value == "left"


async def test_the_tree_can_be_sorted_and_grouped_by_mesh(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.until(lambda: "office[0]" in person.titles())
        await person.press("o", "o")
        assert person.app.view.sort == "memory"
        memory = [
            (one.measures or (0, 0, 0))[1] or 0
            for one in person.entries()
            if one.kind == "proc" and one.row["proc"].startswith("0.")
        ]
        assert memory == sorted(memory, reverse=True)
        await person.press("s")
        await person.until(lambda: "agent" in person.titles())
        await person.press("o", "o", "m")
        await person.until(lambda: person.titles() == ["pair", "team", "far", "office"])
        await person.go("team")
        await person.press("right")
        await person.go("trainers")
        await person.press("right")
        await person.until(lambda: {"trainers[0]", "trainers[1]"} <= set(person.titles()))


async def test_keys_move_as_in_less(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.until(lambda: "far[0]" in person.titles())
        titles = person.titles()

        def here() -> str:
            assert person.tree.current is not None
            return person.tree.current.title

        for keys, title in [
            ("G", titles[-1]),
            ("g", titles[0]),
            ("j", titles[1]),
            ("down", titles[2]),
            ("k", titles[1]),
            ("up", titles[0]),
            ("end", titles[-1]),
            ("home", titles[0]),
        ]:
            await person.press(keys)
            assert here() == title


async def test_sql_queries_run_on_a_separate_screen(troubled: Program) -> None:
    async with top(troubled.pid) as person:
        await person.until(lambda: "office[0]" in person.titles())
        await person.press("S")
        screen = person.app.screen
        await person.until(lambda: screen.query("#sql"))
        editor, said = screen.query_one("#sql", TextArea), screen.query_one("#sql-status", Static)
        editor.text = "select mesh, rank from procs where mesh = 'team' order by rank"
        await person.press("f5")
        await person.until(lambda: "2 rows" in str(said.content), said)
        assert "2 of 2 hosts replied" in str(said.content)
        table = screen.query_one("#result", DataTable)
        assert [str(cell) for cell in table.get_row_at(1)] == ["team", "1"]
        editor.text = "select nothing from nowhere"
        await person.press("f5")
        await person.until(lambda: "nowhere" in str(said.content))
        await person.press("f2", "down", "enter")
        assert editor.text.startswith("select mesh, rank")
        assert screen.query_one("#history", OptionList).option_count == 2
        await person.press("escape")
        await person.until(lambda: len(person.app.screen_stack) == 1)


async def test_each_action_is_in_the_help(troubled: Program) -> None:
    async with top(troubled.pid, size=(260, 80)) as person:
        bar = person.app.query_one(Footer)
        shown = await person.until(lambda: list(bar.query("FooterKey")))
        footer = {str(getattr(key, "description", "")) for key in shown}
        await person.press("question_mark")
        await person.until(lambda: len(person.app.screen_stack) == 2)
        said = str(person.app.screen.query_one(Static).content)
        for one in [*ACTIONS, *TREE_KEYS]:
            assert isinstance(one, Binding)
            assert one.description in said
            assert not one.show or one.description in footer
        # Keys of the tree have no effect while a dialog is open.
        await person.press("x", "m", "escape")
        assert len(person.app.screen_stack) == 1
        assert not person.app.view.is_by_mesh
