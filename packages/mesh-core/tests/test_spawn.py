"""Starting processes and actors, and everything that prevents them from starting."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from failing_actors import Worker
from whole_program import run

from mesh_core import (
    Actor,
    ActorError,
    ActorFailed,
    BootstrapCommand,
    ProcDied,
    SupervisionError,
    configured,
    context,
    endpoint,
    this_host,
)
from mesh_core._meshes.spawn_checks import modules_in_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import ProcMesh

# Far below all timeouts of Mesh.
PROMPT_S = 20.0


class Env(Actor):
    @endpoint
    def get(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def program(self) -> str:
        return sys.executable


@pytest.mark.parametrize(
    ("per_host", "named", "expected"),
    [
        (2, {}, {"procs": 2}),
        (None, {"gpus": 2}, {"gpus": 2}),
        ({"gpus": 2}, {"ranks": 1}, {"gpus": 2, "ranks": 1}),
        (None, {}, {}),
    ],
)
def test_processes_are_requested_by_number_or_by_dimensions(
    per_host: Any, named: dict[str, int], expected: dict[str, int]
) -> None:
    with this_host().spawn_procs(per_host, **named) as procs:
        assert procs.sizes == expected


@pytest.mark.parametrize(
    ("per_host", "named", "message"),
    [
        ([2, 4], {}, r"cannot start \[2, 4\] processes: give their number"),
        (True, {}, "cannot start True processes"),
        ({"gpus": 2}, {"gpus": 2}, "'gpus' is given twice"),
        (None, {"bootstap": print}, "no option 'bootstap': did you mean 'bootstrap'"),
        (None, {"x": "y"}, "no option 'x': use per_host, bootstrap, name"),
    ],
)
def test_the_error_for_wrong_options_lists_the_valid_ones(
    per_host: Any, named: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        this_host().spawn_procs(per_host, **named)


@pytest.mark.parametrize(
    ("args", "kind", "message"),
    [
        ((Env, "env"), TypeError, r'spawn\("env", Env, \.\.\.\)'),
        ((Env,), TypeError, r'spawn\("env", Env, \.\.\.\)'),
        ((1, Env), TypeError, "a name as its first argument, not 1"),
        (("env",), TypeError, "the class of the actors, too"),
        (("env", Env()), ValueError, "takes the class Env, not an instance"),
        (("env", int), ValueError, "int is not a subclass of Actor"),
        (("env", print), ValueError, "is not a class"),
    ],
)
def test_the_error_for_wrong_spawn_arguments_shows_the_correct_call(
    args: tuple[Any, ...], kind: type[Exception], message: str
) -> None:
    spawn: Any = this_host().spawn_procs().spawn
    with pytest.raises(kind, match=message):
        spawn(*args)


def test_bootstrap_runs_in_each_process_before_any_actor() -> None:
    def prepare() -> None:
        os.environ["PREPARED"] = str(os.getpid())

    async def prepare_async() -> None:
        prepare()

    for bootstrap in (prepare, prepare_async):
        with this_host().spawn_procs({"n": 2}, bootstrap=bootstrap) as procs:
            assert procs.initialized.get() is True
            assert len(set(procs.spawn("env", Env).get.call("PREPARED").get().values())) == 2


def test_a_bootstrap_error_is_raised_by_initialized_and_by_every_call() -> None:
    def prepare() -> None:
        raise FileNotFoundError("no data here")

    with this_host().spawn_procs({"n": 2}, bootstrap=prepare) as procs:
        with pytest.raises(ActorFailed, match="no data here") as caught:
            procs.initialized.get()
        assert isinstance(caught.value.__cause__, FileNotFoundError)
        assert len(caught.value.failures) == 2
        mesh = procs.spawn("worker", Worker)
        for outcome in (mesh.initialized, mesh.add.call()):
            with pytest.raises(ActorFailed, match="no data here"):
                outcome.get()


def test_an_unhandled_bootstrap_error_terminates_the_program(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        def prepare():
            raise FileNotFoundError("no data here")
        this_host().spawn_procs(bootstrap=prepare, name="unprepared")
        time.sleep(60)
        """,
    )
    assert ended.status == 1
    assert "no data here" in ended.err
    assert "unprepared" in ended.err


def test_a_bootstrap_that_exits_is_reported_as_a_process_death() -> None:
    with this_host().spawn_procs(bootstrap=lambda: os._exit(5)) as procs:
        with pytest.raises(ProcDied) as caught:
            procs.initialized.get()
        assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (BootstrapCommand("/no/such/program", args=()), "'/no/such/program': No such file"),
        (BootstrapCommand("/etc/passwd", args=()), "'/etc/passwd': Permission denied"),
        (BootstrapCommand.default().with_env({"X": "x" * (2 << 20)}), "Argument list too long"),
        (BootstrapCommand("/bin/false", args=()), "exited with status 1"),
        (BootstrapCommand("/bin/true", args=()), "exited with status 0"),
    ],
    ids=["missing", "not executable", "too large", "fails", "is another program"],
)
def test_the_error_for_a_command_that_cannot_start_names_the_reason(
    command: BootstrapCommand, why: str
) -> None:
    started = time.monotonic()
    with this_host().spawn_procs({"n": 2}, bootstrap_command=command) as procs:
        mesh = procs.spawn("worker", Worker)
        for outcome in (procs.initialized, mesh.add.call()):
            with pytest.raises(SupervisionError) as caught:
                outcome.get()
            assert why in str(caught.value)
    assert time.monotonic() - started < PROMPT_S


def test_bootstrap_class_and_arguments_of_a_spawn_can_be_large() -> None:
    load = os.urandom(2 << 20)

    def keep() -> None:
        sys.modules["builtins"].__dict__["kept_load"] = load

    class Laden(Actor):
        own = load

        def __init__(self, given: bytes) -> None:
            self.given = given

        @endpoint
        def all_of_it(self, load: bytes) -> list[bool]:
            kept = sys.modules["builtins"].__dict__["kept_load"]
            return [one == load for one in (self.own, self.given, kept)]

    for command in (None, BootstrapCommand.default()):
        with this_host().spawn_procs(bootstrap=keep, bootstrap_command=command) as procs:
            laden = procs.spawn("laden", Laden, load)
            assert laden.all_of_it.call_one(load).get() == [True] * 3


def test_the_bootstrap_command_and_its_environment_are_used() -> None:
    command = BootstrapCommand.default().with_env({"COLOUR": "blue"})
    with this_host().spawn_procs(bootstrap_command=command) as procs:
        assert procs.spawn("env", Env).get.call_one("COLOUR").get() == "blue"
    with this_host().with_python_executable(sys.executable).spawn_procs() as procs:
        assert procs.spawn("env", Env).program.call_one().get() == sys.executable


class Spawner(Actor):
    """Starts processes on its own host, and queries their interpreter."""

    @endpoint
    def inner(self, name: str) -> list[str]:
        hosts = [this_host(), context().actor_instance.proc_mesh.host_mesh]
        found = []
        for host in hosts:
            with host.spawn_procs() as procs:
                found.append(procs.spawn("env", Env).get.call_one(name).get())
        return found

    @endpoint
    def innermost(self, name: str) -> list[str]:
        with this_host().spawn_procs() as procs:
            return procs.spawn("spawner", Spawner).inner.call_one(name).get()


def test_processes_spawned_by_actors_inherit_the_python_executable(tmp_path: Path) -> None:
    # A wrapper, because other interpreters of this machine have other packages.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nOWN_PYTHON=yes exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with this_host().with_python_executable(str(python)).spawn_procs() as procs:
        spawner = procs.spawn("spawner", Spawner)
        assert spawner.inner.call_one("OWN_PYTHON").get() == ["yes", "yes"]
        assert spawner.innermost.call_one("OWN_PYTHON").get() == ["yes", "yes"]


def test_the_compiler_that_optimizers_import_is_imported_before_processes_are_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizer = type("AdamW", (), {"__module__": "torch.optim.adamw"})
    monkeypatch.setitem(sys.modules, "torch.optim.adamw", ModuleType("torch.optim.adamw"))
    with configured(preload=None):
        assert "torch._dynamo" not in modules_in_use()
        monkeypatch.setattr(sys.modules["__main__"], "AdamW", optimizer, raising=False)
        assert modules_in_use()[-2:] == ("torch.optim.adamw", "torch._dynamo")


def test_the_command_can_depend_on_the_point() -> None:
    def command(point: Any) -> BootstrapCommand:
        return BootstrapCommand.default().with_env({"PLACE": str(point["n"])})

    with this_host().spawn_procs({"n": 2}, bootstrap_command=command) as procs:
        assert procs.spawn("env", Env).get.call("PLACE").get().values() == ["0", "1"]


def test_the_error_names_a_class_that_the_process_cannot_import(
    proc: ProcMesh, tmp_path: Path
) -> None:
    (tmp_path / "only_here.py").write_text(
        "from mesh_core import Actor, endpoint\n"
        "class Local(Actor):\n"
        "    @endpoint\n"
        "    def add(self): return 1\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import only_here  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    mesh = proc.spawn("local", only_here.Local)
    for outcome in (mesh.initialized, mesh.add.call_one()):
        with pytest.raises(ActorFailed, match="only_here") as caught:
            outcome.get()
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert proc.spawn("worker", Worker).add.call_one().get() == 1


@pytest.mark.parametrize(
    ("spawn", "error", "text"),
    [
        (lambda: this_host().spawn_procs({"n": 0}), ValueError, "'n'"),
        (lambda: this_host().spawn_procs({"n": -1}), ValueError, "'n'"),
        (lambda: this_host().spawn_procs({"n": 1.5}), ValueError, "'n'"),  # type: ignore[dict-item]
        (lambda: this_host().spawn_procs({"n": True}), ValueError, "'n'"),
        (lambda: this_host().spawn_procs({"not a name": 1}), ValueError, "not a name"),
        (lambda: this_host().spawn_procs({"n": 2}, proc_bind=[{}]), ValueError, "proc_bind"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    spawn: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        spawn()


def test_wrong_spawns_are_refused_at_once(proc: ProcMesh) -> None:
    with pytest.raises(ValueError, match="Actor"):
        proc.spawn("worker", int)
    with pytest.raises(TypeError):
        proc.spawn("worker", Worker, 1, 2, 3, 4, 5)
    with pytest.raises(TypeError):
        proc.spawn("worker", Worker, nonsense=1)
    with pytest.raises(TypeError, match="lock"):
        proc.spawn("worker", Worker, threading.Lock())
    with pytest.raises(ValueError, match="mailbox_len_max"):
        proc.spawn("worker", Worker, mailbox_len_max=0)


def test_a_process_mesh_without_dimensions_has_one_process() -> None:
    with this_host().spawn_procs() as procs:
        assert len(procs) == 1
        assert procs.spawn("worker", Worker).add.call_one().get() == 1


class Weights:
    """An argument that may be large."""


class Reader(Actor):
    """Uses its argument only in `__init__`."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weakref.ref(weights)

    @endpoint
    def has_weights(self) -> bool:
        return self.weights() is not None


class AsyncReader(Actor):
    """The same on the event loop."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weakref.ref(weights)

    @endpoint
    async def has_weights(self) -> bool:
        return self.weights() is not None


@pytest.mark.parametrize("kind", [Reader, AsyncReader])
def test_arguments_of_a_spawn_live_only_as_long_as_the_actor_uses_them(
    proc: ProcMesh, kind: type[Reader]
) -> None:
    reader = proc.spawn("reader", kind, Weights())
    assert not reader.has_weights.call_one().get(timeout=PROMPT_S)


def test_sixty_four_processes_start_and_stop() -> None:
    started = time.monotonic()
    with this_host().spawn_procs({"host": 8, "gpu": 8}, name="many") as procs:
        mesh = procs.spawn("worker", Worker)
        assert mesh.add.call().get().values() == [1] * 64
        assert len(set(mesh.pid.call().get().values())) == 64
    assert time.monotonic() - started < 60


def test_the_error_of_an_endpoint_names_all_failed_ranks() -> None:
    with this_host().spawn_procs({"n": 8}) as procs:
        with pytest.raises(ActorError) as caught:
            procs.spawn("worker", Worker).fail.call().get()
        assert [place.rank for place, _ in caught.value.failures] == list(range(8))
