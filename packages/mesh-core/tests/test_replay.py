"""Failures of recorded actors, replayed in other processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mesh_core._replay.command import main
from mesh_core._replay.loop import VirtualLoop
from mesh_core.replay import Replay, ReplayDiverged, ReplayedDeath, ReplayError

PROGRAM = Path(__file__).with_name("recorded_failures.py")
LIMIT_S = 100.0


class Recorded:
    """The cases of one run of the program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A copy, so that a test can correct it.
        self.script = folder / "program.py"
        self.script.write_text(PROGRAM.read_text())
        done = subprocess.run(
            [sys.executable, str(self.script), str(folder / "cases")],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr
        self.printed = done.stdout.split()
        self.errors = done.stderr

    def case(self, words: str) -> Path:
        """Return the case whose name contains some words."""
        found = [one for one in (self.folder / "cases").iterdir() if words in one.name]
        assert len(found) == 1, (words, self.errors)
        return found[0]

    def replay(self, words: str, actor: str | None = None) -> Replay:
        """Return the replay of that case."""
        return Replay(self.case(words), actor=actor, trust=True)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The cases of a program whose actors fail."""
    return Recorded(tmp_path_factory.mktemp("recorded"))


def reason(replay: Replay) -> str:
    """Return the message of the recorded exception."""
    found = re.search(r"raised \w+: (.*)", replay.case.reason)
    assert found is not None, replay.case.reason
    return found.group(1)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("adder-add-raised-TypeError", TypeError),
        ("adder-add-required-raised-OverflowError", OverflowError),
        ("teller-check-raised-ValueError", ValueError),
        ("numbers-collect-raised-LookupError", LookupError),
        ("patient-wait-raised-InterruptedError", InterruptedError),
        ("mailbox0-take-raised-BlockingIOError", BlockingIOError),
        ("mailbox1-take-raised-FileExistsError", FileExistsError),
        ("gambler-play-raised-ArithmeticError", ArithmeticError),
        ("gambler-large-raised-BufferError", BufferError),
    ],
)
def test_the_actor_fails_in_the_same_way(
    recorded: Recorded, words: str, error: type[Exception]
) -> None:
    replay = recorded.replay(words)
    assert replay.changed_files == []
    with pytest.raises(error) as raised:
        replay.run()
    # Also the order of replies, the interleaving of calls, the time and the random numbers.
    assert str(raised.value) == reason(replay)


def test_other_actors_of_the_case_can_be_replayed(recorded: Recorded) -> None:
    replay = recorded.replay("adder-add-raised-TypeError", "store")
    assert replay.run() is None
    with pytest.raises(ReplayError, match=r"has no actor 'who'.*adder\[0\]"):
        recorded.replay("adder-add-raised-TypeError", "who")


def test_a_case_is_saved_on_request(recorded: Recorded) -> None:
    path = recorded.case("a-look-at-the-store")
    assert str(path) in recorded.printed
    assert Replay(path, trust=True).run() is None


def test_the_death_of_a_process_is_replayed(recorded: Recorded) -> None:
    replay = recorded.replay("dying-its-process-was-killed-by-SIGKILL")
    assert replay.is_death
    with pytest.raises(ReplayedDeath, match=r"dying\[0\] was killed by SIGKILL"):
        replay.run_isolated()


def test_an_untrusted_case_is_not_executed(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(recorded.case("adder-add-raised-TypeError"))
    with pytest.raises(ReplayError, match="trust=True"):
        Replay(path)
    assert main([path]) == 2
    assert "--trust" in capsys.readouterr().err


def test_the_command_shows_the_failing_line(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(recorded.case("adder-add-raised-TypeError")), "--trust"]) == 1
    shown = capsys.readouterr().err
    assert "self.total += value" in shown
    assert "adder[0] fails as recorded" in shown
    assert "_replay" not in shown


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of a directory."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_the_generated_test_fails_until_the_program_is_corrected(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = recorded.case("adder-add-raised-TypeError")
    assert main([str(case), "--trust", "--as-test", str(tmp_path)]) == 0
    written = Path(capsys.readouterr().out.strip())
    assert written.parent == tmp_path
    assert written.with_suffix(".case").exists()
    failed = run_tests(tmp_path)
    assert failed.returncode == 1, failed.stdout
    assert "TypeError" in failed.stdout
    program = recorded.script.read_text()
    try:
        recorded.script.write_text(
            program.replace("self.total += value ", "self.total += value or 0 ")
        )
        passed = run_tests(tmp_path)
        assert passed.returncode == 0, passed.stdout
    finally:
        recorded.script.write_text(program)


def run_replay(*words: str, commands: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    command = [sys.executable, "-m", "mesh_core.replay", *words]
    return subprocess.run(
        command, input=commands, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_a_diverging_replay_reports_where_and_how_it_differs(recorded: Recorded) -> None:
    case = str(recorded.case("adder-add-raised-TypeError"))
    program = recorded.script.read_text()
    try:
        recorded.script.write_text(
            program.replace("self.store.get.call_one(name)", "self.store.require.call_one(name)")
        )
        done = run_replay(case, "--trust")
        assert done.returncode == 3, done.stderr
        assert "program.py differs from the recorded run" in done.stderr
        assert "message #1: a call differs" in done.stderr
        assert "recorded: get of store[0]" in done.stderr
        assert "replayed: require[0]" in done.stderr
        recorded.script.write_text(program.replace("return self.total", "return self.total + 1", 1))
        done = run_replay(case, "--trust")
        assert done.returncode == 3, done.stderr
        assert "message #1: the result differs" in done.stderr
        assert "recorded: 0\n" in done.stderr
        assert "replayed: 1\n" in done.stderr
    finally:
        recorded.script.write_text(program)


def test_the_debugger_stops_at_the_failure_and_can_step_back(recorded: Recorded) -> None:
    case = str(recorded.case("adder-add-raised-TypeError"))
    commands = "p ('at', self.total, name)\nback\np ('before', self.total, name)\nq\n"
    done = run_replay(case, "--trust", "--pdb", commands=commands)
    assert "('at', 3, 'x3')" in done.stdout, done.stdout + done.stderr
    assert "message #3: add" in done.stdout
    assert "('before', 1, 'x2')" in done.stdout


def test_a_replay_stops_before_the_given_message(recorded: Recorded) -> None:
    case = str(recorded.case("adder-add-raised-TypeError"))
    done = run_replay(case, "--trust", "--until", "2", commands="p ('is', self.total, name)\nq\n")
    assert "('is', 0, 'x1')" in done.stdout, done.stdout + done.stderr


def test_a_replay_with_evicted_messages_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text(
        "from mesh_core import Actor, endpoint, this_host\n"
        "from mesh_core.recording import record\n"
        "class Eater(Actor):\n"
        "    @endpoint\n"
        "    def eat(self, data: bytes) -> None:\n"
        "        if not data: raise ValueError('nothing')\n"
        "if __name__ == '__main__':\n"
        "    record(budget_bytes='1 MiB')\n"
        "    eater = this_host().spawn_procs().spawn('eater', Eater)\n"
        "    for _ in range(100): eater.eat.call_one(bytes(30_000)).get()\n"
        "    eater.eat.call_one(b'').get()\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=tmp_path,
    )
    assert "ValueError" in done.stderr
    (case,) = (tmp_path / "mesh-cases").iterdir()
    with pytest.raises(ReplayError, match=r"first \d+ messages of eater\[0\].*record_bytes_max"):
        Replay(case, trust=True)


def test_virtual_time_does_not_wait() -> None:
    loop = VirtualLoop()
    seen: list[str] = []
    loop.call_later(3600.0, seen.append, "late")
    loop.call_later(60.0, seen.append, "early")
    loop.settle(100.0)
    assert seen == ["early"]
    assert loop.time() == 100.0
    loop.settle(4000.0)
    assert seen == ["early", "late"]
    loop.close()


def test_an_except_exception_clause_does_not_catch_a_divergence() -> None:
    # The code of an actor that catches every exception must not hide that the replay differs.
    assert not issubclass(ReplayDiverged, Exception)
