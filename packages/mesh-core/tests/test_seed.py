"""Imports of one program's processes are available to the next program's processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host_recorder import parent, wait_until_gone
from workers import WorkerProcess

from mesh_core import (
    Actor,
    ActorMesh,
    ProcDied,
    attach_to_workers,
    configured,
    endpoint,
    shutdown_context,
)
from mesh_core.testing import kill_proc

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 30.0
TELLING = "print('imported', file=open({log!r}, 'a'))\nVALUE = {value}\n"


class Looker(Actor):
    @endpoint
    def has(self, *names: str) -> list[bool]:
        return [name in sys.modules for name in names]

    @endpoint
    def value(self, name: str) -> int:
        return int(__import__(name).VALUE)

    @endpoint
    def line(self) -> list[tuple[int, str]]:
        """Return the pids and the process names of all ancestors."""
        pid, found = os.getpid(), []
        while pid > 1:
            found.append((pid, Path(f"/proc/{pid}/comm").read_text().strip()))
            pid = parent(pid)
        return found


class Library:
    """Modules that record their imports: installed ones and the user's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "imports"
        self._log.touch()
        (folder / "site-packages").mkdir()

    def path(self) -> str:
        return os.pathsep.join(map(str, (self._folder, self._folder / "site-packages")))

    def write(self, name: str, value: int, *, is_installed: bool = True) -> None:
        folder = self._folder / "site-packages" if is_installed else self._folder
        (folder / f"{name}.py").write_text(TELLING.format(log=str(self._log), value=value))

    def imports(self) -> int:
        return len(self._log.read_text().splitlines())


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library(tmp_path)
    monkeypatch.setenv("PYTHONPATH", made.path())
    return made


@pytest.fixture
def worker(library: Library) -> Iterator[WorkerProcess]:
    with WorkerProcess() as started:
        yield started


def run_program(worker: WorkerProcess, *preload: str) -> ActorMesh[Looker]:
    """Start a program on the worker."""
    hosts = attach_to_workers([worker.address])
    with configured(preload=preload):
        return hosts.spawn_procs({"gpus": 2}).spawn("lookers", Looker)


def end_program() -> None:
    shutdown_context().get(timeout=LIMIT_S)


def test_the_next_program_reuses_the_imports_of_the_previous_one(
    worker: WorkerProcess, library: Library
) -> None:
    library.write("heavy", 1)
    for _ in range(3):
        lookers = run_program(worker, "heavy")
        assert lookers.has.call("heavy").get().values() == [[True]] * 2
        end_program()
    assert library.imports() == 1


def test_the_next_program_can_start_more_processes_and_replace_them(
    worker: WorkerProcess, library: Library
) -> None:
    library.write("heavy", 1)
    run_program(worker, "heavy").has.call().get()
    end_program()
    hosts = attach_to_workers([worker.address])
    with configured(preload=("heavy",)):
        meshes = [hosts.spawn_procs({"gpus": 2}).spawn("lookers", Looker) for _ in range(3)]
    for _ in range(2):
        kill_proc(meshes[0].slice(gpus=1))
        with pytest.raises(ProcDied):
            meshes[0].has.call().get(timeout=LIMIT_S)
        meshes[0].replace(1)
    for lookers in meshes:
        assert lookers.has.call("heavy").get().values() == [[True]] * 2
    end_program()
    assert library.imports() == 1


def test_a_module_of_another_program_is_not_imported(
    worker: WorkerProcess, library: Library
) -> None:
    library.write("heavy", 1)
    library.write("light", 2)
    run_program(worker, "heavy").has.call().get()
    end_program()
    lookers = run_program(worker, "light")
    assert lookers.has.call("heavy", "light").get().values() == [[False, True]] * 2
    end_program()


def test_additional_modules_of_the_next_program_are_imported(
    worker: WorkerProcess, library: Library
) -> None:
    library.write("heavy", 1)
    library.write("light", 2)
    run_program(worker, "heavy").has.call().get()
    end_program()
    lookers = run_program(worker, "light", "heavy")
    assert lookers.has.call("heavy", "light").get().values() == [[True, True]] * 2
    assert library.imports() == 2


def test_a_changed_package_is_imported_again(worker: WorkerProcess, library: Library) -> None:
    library.write("heavy", 1)
    assert run_program(worker, "heavy").value.call("heavy").get().values() == [1, 1]
    end_program()
    library.write("heavy", 22)
    assert run_program(worker, "heavy").value.call("heavy").get().values() == [22, 22]


def test_user_modules_are_not_retained(worker: WorkerProcess, library: Library) -> None:
    library.write("mine", 1, is_installed=False)
    library.write("heavy", 1)
    run_program(worker, "mine", "heavy").has.call().get()
    end_program()
    run_program(worker, "mine", "heavy").has.call().get()
    assert library.imports() == 3


def retained_template_of(lookers: ActorMesh[Looker]) -> int:
    """Return the pid of the template process that forked the processes."""
    line = lookers.line.call().get().values()[0]
    return next(pid for pid, name in line if name == "mesh-retained")


def test_a_program_starts_even_if_the_retained_template_was_killed(
    worker: WorkerProcess, library: Library
) -> None:
    library.write("heavy", 1)
    run_program(worker, "heavy").has.call().get()
    end_program()
    lookers = run_program(worker, "heavy")
    os.kill(retained_template_of(lookers), signal.SIGKILL)
    assert lookers.has.call("heavy").get().values() == [[True]] * 2
    end_program()
    assert run_program(worker, "heavy").has.call("heavy").get().values() == [[True]] * 2
    assert library.imports() == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_retained_template_exits_with_its_worker(
    library: Library, number: signal.Signals
) -> None:
    library.write("heavy", 1)
    with WorkerProcess() as worker:
        run_program(worker, "heavy").has.call().get()
        end_program()
        lookers = run_program(worker, "heavy")
        retained = retained_template_of(lookers)
        end_program()
        worker.send(number)
        worker.wait()
        wait_until_gone([retained])
