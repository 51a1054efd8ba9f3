"""Actors whose modules are slow to import."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from mesh_core import Actor, MeshStopped, configured, endpoint, this_host
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_SLOW_MODULE = """
import os, sys, time
from mesh_core import Actor, endpoint

class Late(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

# Only where it is loaded for an actor; who spawns it has it at once.
if os.getpid() != {program}:
    open({begun!r}, "w").close()
    while not os.path.exists({go!r}):
        time.sleep(0.01)
"""


class Prompt(Actor):
    @endpoint
    def pid(self) -> int:

        return os.getpid()


class _Import:
    """A module whose import the test controls."""

    def __init__(self, folder: Path) -> None:

        self._begun, self._go = folder / "begun", folder / "go"
        text = _SLOW_MODULE.format(program=os.getpid(), begun=f"{self._begun}", go=f"{self._go}")
        (folder / "mesh_late_module.py").write_text(text)
        from mesh_late_module import Late  # type: ignore[import-not-found]

        self.actor = Late

    def wait_until_begun(self) -> None:
        wait_until(self._begun.exists)

    def let_go_on(self) -> None:
        self._go.touch()


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Import]:
    monkeypatch.syspath_prepend(f"{tmp_path}")
    found = _Import(tmp_path)
    try:
        yield found
    finally:
        found.let_go_on()
        sys.modules.pop("mesh_late_module", None)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that counts the liveness checks of the process that stops an actor."""
    from mesh_core._supervision.stop_watchdog import StopWatch

    seen = []
    look = StopWatch._look

    def counted(self: StopWatch, *args: object) -> None:
        seen.append(args)
        look(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(StopWatch, "_look", counted)
    return lambda: len(seen)


def test_a_process_with_a_slow_import_is_not_considered_dead(
    late: _Import, looks: Callable[[], int]
) -> None:
    procs = this_host().spawn_procs({"procs": 1})
    prompt = procs.spawn("prompt", Prompt)
    pid = prompt.pid.call_one().get()
    coming = procs.spawn("late", late.actor)
    late.wait_until_begun()
    with configured(stop_grace_s=0.1):
        stopped = prompt.stop()
    wait_until(lambda: looks() >= 4, deadline=30)
    late.let_go_on()
    stopped.get()
    assert coming.pid.call_one().get() == pid
    procs.stop().get()


def test_an_actor_can_be_stopped_while_its_module_is_imported(late: _Import) -> None:
    procs = this_host().spawn_procs({"procs": 1})
    coming = procs.spawn("late", late.actor)
    asked = coming.pid.call_one()
    late.wait_until_begun()
    with configured(stop_grace_s=0.1):
        coming.stop().get()
    with pytest.raises(MeshStopped):
        asked.get()
    late.let_go_on()
    assert procs.spawn("prompt", Prompt).pid.call_one().get() > 0
    procs.stop().get()


def test_calls_sent_before_a_stop_are_served_after_a_slow_import(late: _Import) -> None:
    procs = this_host().spawn_procs({"procs": 1})
    coming = procs.spawn("late", late.actor)
    asked = coming.pid.call_one()
    late.wait_until_begun()
    stopped = coming.stop()
    late.let_go_on()
    stopped.get()
    assert asked.get() > 0
    procs.stop().get()
