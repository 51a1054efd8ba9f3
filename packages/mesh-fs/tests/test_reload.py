"""Modules that processes reload when their files have changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from mesh_core import Actor, ProcMesh, endpoint, this_host
from mesh_fs import CacheOptions, ReloadError, Workspace, sync_workspace

PROCS = 2


class Caller(Actor):
    """Uses modules of the workspace in its process."""

    def __init__(self, directory: str) -> None:
        sys.path.insert(0, directory)
        self.kept: object = None

    @endpoint
    def evaluate(self, module: str, expression: str) -> object:
        """Import a module and evaluate an expression in it."""
        __import__(module)
        return eval(expression, vars(sys.modules[module]) | {"caller": self})

    @endpoint
    def keep(self, module: str, expression: str) -> None:
        """Store the value of an expression."""
        __import__(module)
        self.kept = eval(expression, vars(sys.modules[module]))


class Project:
    """A workspace with modules that the test writes, and processes that use them."""

    def __init__(self, folder: Path, cache: CacheOptions) -> None:
        self.source = folder / "project"
        self.remote = folder / "remote"
        self.source.mkdir()
        self.procs: ProcMesh = this_host().spawn_procs({"gpus": PROCS})
        self.caller = self.procs.spawn("caller", Caller, str(self.remote))
        self.cache = cache
        self.workspace: Workspace | None = None

    def write(self, texts: dict[str, str] | None = None, /, **named: str) -> None:
        for name, text in (texts or {}).items() | named.items():
            path = self.source / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(dedent(text))

    def sync(self) -> tuple[str, ...]:
        if self.workspace is None:
            self.workspace = sync_workspace(
                this_host(), self.source, self.remote, cache=self.cache, auto_reload=self.procs
            )
            return self.workspace.result.modules
        return self.workspace.sync().modules

    def ask(self, module: str, expression: str) -> object:
        answers = self.caller.evaluate.call(module, expression).get(timeout=60).values()
        assert len(answers) == PROCS
        assert all(answer == answers[0] for answer in answers)
        return answers[0]

    def keep(self, module: str, expression: str) -> None:
        self.caller.keep.call(module, expression).get(timeout=60)


@pytest.fixture
def project(tmp_path: Path, cache: CacheOptions) -> Iterator[Project]:
    """A workspace that is closed at the end."""
    made = Project(tmp_path, cache)
    yield made
    if made.workspace is not None:
        made.workspace.close()
    made.procs.stop().get()


def test_only_changed_modules_are_reloaded(project: Project) -> None:
    project.write(alpha="X = 1\nimport random\nMARK = random.random()", beta="X = 2")
    assert project.sync() == ()
    project.ask("alpha", "X")
    assert project.ask("beta", "X") == 2
    project.keep("alpha", "MARK")
    project.write(beta="X = 3")
    assert project.sync() == ("beta",)
    assert project.ask("beta", "X") == 3
    assert project.ask("alpha", "caller.kept == MARK") is True
    assert project.sync() == ()


def test_modules_that_imported_names_of_a_changed_module_are_reloaded(project: Project) -> None:
    project.write(
        config="RATE = 1",
        middle="from config import RATE as FIRST\nimport config\nDOUBLE = 2 * FIRST",
        final="from middle import *\nfrom typing import TYPE_CHECKING\nTRIPLE = DOUBLE + FIRST",
        aside="import config\ndef late():\n    from config import RATE\n    return RATE",
    )
    project.sync()
    assert project.ask("final", "TRIPLE") == 3
    assert project.ask("aside", "late()") == 1
    project.write(config="RATE = 10")
    assert project.sync() == ("config", "final", "middle")
    assert project.ask("final", "TRIPLE") == 30
    assert project.ask("aside", "late()") == 10


def test_a_package_is_reloaded_if_it_imports_names_of_a_changed_submodule(project: Project) -> None:
    project.write(
        {
            "box/__init__": "from .inner import NAME\nfrom . import other",
            "box/inner": "NAME = 'old'",
            "box/other": "NAME = 'other'",
        }
    )
    project.sync()
    assert project.ask("box", "NAME") == "old"
    project.write({"box/inner": "NAME = 'new'"})
    assert project.sync() == ("box", "box.inner")
    assert project.ask("box", "NAME") == "new"
    project.write({"box/other": "NAME = 'changed'"})
    assert project.sync() == ("box.other",)
    assert project.ask("box", "other.NAME") == "changed"


def test_an_edit_within_a_second_that_keeps_the_size_is_detected(project: Project) -> None:
    project.write(alpha="X = 1")
    project.sync()
    for number in range(2, 6):
        assert project.ask("alpha", "X") == number - 1
        project.write(alpha=f"X = {number}")
        assert project.sync() == ("alpha",)


def test_existing_objects_run_new_code(project: Project) -> None:
    code = """
        import functools

        def traced(function):
            @functools.wraps(function)
            def call(*args):
                return ("traced", function(*args))
            return call

        class Shape:
            KINDS = []
            def area(self):
                return {number}
            @property
            def name(self):
                return "name {number}"
            @staticmethod
            def count():
                return {number}
            @traced
            def decorated(self):
                return {number}

        class Square(Shape):
            def area(self):
                return (super().area(), {number})
            class Side:
                LENGTH = {number}

        def plain():
            return {number}

        REGISTRY = {{"square": Square}}
        DEFAULT = Square()
        """
    project.write(shapes=code.format(number=1))
    project.sync()
    project.keep("shapes", "(Square(), plain, Square.Side, Square().decorated)")
    assert project.ask("shapes", "caller.kept[0].area()") == (1, 1)
    project.write(shapes=code.format(number=2))
    assert project.sync() == ("shapes",)
    for expression, answer in {
        "caller.kept[0].area()": (2, 2),
        "caller.kept[0].name": "name 2",
        "caller.kept[0].count()": 2,
        "caller.kept[0].decorated()": ("traced", 2),
        "caller.kept[1]()": 2,
        "caller.kept[2].LENGTH": 2,
        "caller.kept[3]()": ("traced", 2),
        "isinstance(caller.kept[0], Square) and isinstance(caller.kept[0], Shape)": True,
        "REGISTRY['square'] is Square and type(DEFAULT) is Square": True,
        "Square().area()": (2, 2),
        "DEFAULT.area()": (2, 2),
    }.items():
        assert project.ask("shapes", expression) == answer, expression


def test_a_running_actor_serves_calls_with_new_code(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        from mesh_core import Actor, endpoint

        class Greeter(Actor):
            def __init__(self):
                self.calls = 0
            @endpoint
            def greet(self):
                self.calls += 1
                return f"{word} {{self.calls}}"
        """
    project.write(greeter=code.format(word="hello"))
    project.sync()
    monkeypatch.syspath_prepend(project.source)
    project.ask("greeter", "1")
    from greeter import Greeter  # type: ignore[import-not-found]

    greeters = project.procs.spawn("greeter", Greeter)
    assert greeters.greet.call().get(timeout=60).values() == ["hello 1"] * PROCS
    project.write(greeter=code.format(word="good day"))
    assert project.sync() == ("greeter",)
    assert greeters.greet.call().get(timeout=60).values() == ["good day 2"] * PROCS
    monkeypatch.delitem(sys.modules, "greeter")


def test_removed_names_are_deleted(project: Project) -> None:
    project.write(alpha="X = 1\ndef gone():\n    pass\nclass Kept:\n    def lost(self): ...")
    project.sync()
    project.ask("alpha", "X")
    project.write(alpha="X = 2\nclass Kept:\n    def found(self): ...")
    project.sync()
    assert project.ask("alpha", "'gone' in globals() or hasattr(Kept, 'lost')") is False
    assert project.ask("alpha", "hasattr(Kept, 'found')") is True


@pytest.mark.parametrize("broken", ["X = 2\nNEW = 3\nraise KeyError('why')", "X = = 2"])
def test_a_module_that_fails_to_reload_stays_unchanged(project: Project, broken: str) -> None:
    project.write(alpha="X = 1", beta="from alpha import X\nY = X")
    project.sync()
    assert project.ask("beta", "Y") == 1
    project.write(alpha=broken)
    for _ in range(2):
        with pytest.raises(ReloadError, match=r"rank 0.*'alpha'") as caught:
            project.sync()
        assert (caught.value.rank, caught.value.module) == (0, "alpha")
        assert "Error" in caught.value.cause
        assert len(caught.value.others) == PROCS - 1
        assert project.ask("alpha", "(X, 'NEW' in globals())") == (1, False)
        assert project.ask("beta", "Y") == 1
    project.write(alpha="X = 5")
    assert project.sync() == ("alpha", "beta")
    assert project.ask("beta", "Y") == 5


def test_new_modules_can_be_imported(project: Project) -> None:
    project.write(alpha="X = 1")
    project.sync()
    project.ask("alpha", "X")
    project.write(alpha="import fresh\nX = fresh.X", fresh="X = 7")
    assert project.sync() == ("alpha",)
    assert project.ask("alpha", "X") == 7
    project.write(fresh="X = 8")
    assert project.sync() == ("fresh",)
