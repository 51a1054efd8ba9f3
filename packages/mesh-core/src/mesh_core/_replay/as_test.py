"""A failure as a test: a pytest file, with the case beside it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._replay.replay import Replay

__all__ = ["write_test", "write_test_of"]

_TEMPLATE = '''"""{title}"""

from pathlib import Path

from mesh_core.replay import Replay

CASE = Path(__file__).with_name({case!r})


def test_{name}() -> None:
    Replay(CASE, actor={actor!r}, trust=True).{method}()
'''


def write_test(replay: Replay, folder: str) -> Path:
    """Write a test that fails as the actor did, and passes once the cause is corrected.

    Args:
        replay: The replay.
        folder: The directory of the test, which is created if it does not exist.

    Returns:
        The path of the test.

    Raises:
        OSError: The files cannot be written.
    """
    actor = replay.actor
    return write_test_of(
        replay.path,
        folder,
        replay.case.reason,
        lambda title, case, name: _TEMPLATE.format(
            title=f"Replays a recorded failure: {title}",
            case=case,
            name=name,
            actor=f"{actor.mesh}[{actor.rank}]",
            method="run_isolated" if replay.is_death else "run",
        ),
    )


def write_test_of(
    source: Path, folder: str, reason: str, text: Callable[[str, str, str], str]
) -> Path:
    """Write a test with a copy of a case beside it; return the path of the test.

    Args:
        source: The case.
        folder: The directory of the test, which is created if it does not exist.
        reason: The subject of the test, in one line.
        text: Returns the text of the test: a function of a title, the name of the copied file, and
            a name for the function.

    Raises:
        OSError: The files cannot be written.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    words = re.sub(r"[^a-z0-9]+", "_", reason.lower()).strip("_")
    name = words[:50].strip("_") or "case"
    path = target / f"test_{name}.py"
    count = 1
    while path.exists():
        count += 1
        path = target / f"test_{name}_{count}.py"
    case = path.with_suffix(".case")
    shutil.copyfile(source, case)
    title = reason.replace("\\", "/").replace('"', "'").splitlines()[0][:200] + "."
    path.write_text(text(title, case.name, name), encoding="utf-8")
    return path
