"""Every script of examples/ and below succeeds and prints the lines in its last comment.

An example may end with its output, in order, with `...` for parts that differ from run to run:

    # prints:
    #   hello from rank 0
    #   done in ... s
"""

from pathlib import Path

import pytest

from tests.programs import missing_line, run_program, shown_lines
from tools.workspace import ROOT

EXAMPLES = ROOT / "examples"
LIMIT_S = 240
#: The README runs this example, and `tests/readme` compares its output.
IN_README = "train_digits.py"
#: Examples that mount directories; `packages/mesh-fs/tests` runs them.
WITH_MOUNTS = EXAMPLES / "monarch" / "remotemount.py"
#: Examples with torch whose ideas other examples show as well.
SLOW = {
    "monarch/ddp.py",
    "monarch/distributed_tensors.py",
    "monarch/grpo.py",
    "monarch/rdma_pingpong.py",
    "tensor_pipeline.py",
    "tensor_simulate.py",
}
#: All other examples, by their paths in the folder.
SCRIPTS = {
    str(path.relative_to(EXAMPLES)): path
    for path in sorted((*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*/*.py")))
    if path.name != IN_README and path != WITH_MOUNTS
}


@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, id=name, marks=pytest.mark.slow if name in SLOW else ())
        for name, path in SCRIPTS.items()
    ],
)
def test_script(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_HOME", str(tmp_path / "home"))  # without other jobs of the same name
    printed = run_program(script, cwd=tmp_path, limit_s=LIMIT_S)
    missing = missing_line(printed, shown_lines(script.read_text(encoding="utf-8")))
    assert missing is None, f"not printed: {missing}\n{printed}"


def test_shown_lines_follow_the_heading_of_the_comment() -> None:
    source = "print('a')\n\n# prints:\n#   a\n#\n#   took ... s\n"
    assert shown_lines(source) == ["   a", "   took ... s"]
    assert shown_lines("print('a')\n") == []
