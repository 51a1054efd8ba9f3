"""Ten planted bugs, recorded on two hosts, and replayed here without them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hosts.cluster import WorkerCluster
from tools.workspace import ROOT

PROGRAM = Path(__file__).with_name("planted_bugs.py")
LIMIT_S = 100.0

#: The exit statuses of a replay: it fails as recorded, or it differs from the recording.
FAILS, DIFFERS = 1, 3


@dataclass(frozen=True)
class Bug:
    """A planted bug.

    Attributes:
        name: The function of the program.
        mesh: The mesh whose actor fails.
        error: The exception.
        wrong: The line with the bug.
        right: The corrected line.
        why_not: The message of a replay that cannot reproduce the bug; None if it can.
    """

    name: str
    mesh: str
    error: str
    wrong: str = ""
    right: str = ""
    why_not: str | None = None


BUGS = [
    Bug(
        "bad_shape", "layers", "ValueError",
        "[1.0] * (4 - current_rank().rank)", "[1.0] * 4",
    ),
    Bug("race_of_two_callers", "teller", "ValueError", "if balance != 3:", "if balance < 2:"),
    Bug(
        "failure_after_restart", "counter", "KeyError",
        "self.seen[name] += 1", "self.seen[name] = self.seen.get(name, 0) + 1",
    ),
    Bug(
        "message_order", "reducer", "LookupError",
        'if self.parts == ["slow"]:', 'if self.parts == ["none"]:',
    ),
    Bug(
        "index_out_of_range", "window", "IndexError",
        "if value % 10_000 else 100", "if value % 10_000 else 0",
    ),
    Bug(
        "exception_in_callback", "reader", "TypeError",
        "self.latest = 10 // future.get()", "self.latest = future.get()",
    ),
    Bug("deadlock", "left", "DeadlockError", "other.answer.call_one(me).get()", "pass"),
    Bug(
        "set_order", "chooser", "KeyError",
        why_not="differs between processes unless PYTHONHASHSEED is set",
    ),
    Bug(
        "wrong_weights", "trainer", "FloatingPointError",
        "except MeshError:\n            self.last = 0",
        "except MeshError:\n            pass",
    ),
    Bug(
        "hidden_global_state", "user", "ZeroDivisionError",
        why_not="such as the global state that it shared with setter[0]",
    ),
]  # fmt: skip


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command here, in an environment without settings of Mesh."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MESH_")}
    kept.pop("PYTHONHASHSEED", None)
    words = [str(word) for word in command]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=kept
    )


@pytest.mark.timeout(180)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_reproduced_until_it_is_fixed(
    cluster: WorkerCluster, bug: Bug, outcomes: list[tuple[str, str, str, str]]
) -> None:
    cluster.repair()
    folder = cluster.folder / bug.name
    folder.mkdir()
    script = folder / "program.py"
    script.write_text(PROGRAM.read_text())
    arguments = [bug.name, str(folder / "cases"), cluster.keys, *cluster.addresses()]
    ran = cluster.client.run(
        [sys.executable, str(script), *arguments], check=False, timeout=LIMIT_S, cwd=ROOT
    )
    assert bug.error in ran.stdout, ran.stdout + ran.stderr
    cases = [one for one in (folder / "cases").iterdir() if f"-{bug.mesh}-" in one.name]
    cases = [one for one in cases if bug.error in one.name]
    assert len(cases) == 1, ran.stderr
    replay = [sys.executable, "-m", "mesh_core.replay", cases[0], "--trust"]
    replayed = run(*replay)
    if bug.why_not is not None:
        assert replayed.returncode == DIFFERS, replayed.stderr
        assert bug.why_not in replayed.stderr
        outcomes.append((bug.name, f'not reproduced: "{bug.why_not}"', "-", "-"))
        return
    assert replayed.returncode == FAILS, replayed.stderr
    assert bug.error in replayed.stderr
    assert f"{bug.mesh}[" in replayed.stderr
    assert run(*replay, "--as-test", folder / "tests").returncode == 0
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    failed = run(*pytest_command, folder / "tests")
    assert failed.returncode == FAILS, failed.stdout
    assert bug.error in failed.stdout
    text = script.read_text()
    assert bug.wrong in text
    script.write_text(text.replace(bug.wrong, bug.right))
    passed = run(*pytest_command, folder / "tests")
    assert passed.returncode == 0, passed.stdout
    outcomes.append((bug.name, f"{bug.error}, as recorded", "fails", "passes"))
