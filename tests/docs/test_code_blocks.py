"""Every Python block of a document runs: the blocks of one file form one program, in order."""

from pathlib import Path

import pytest

from tests.docs.markdown import Block, Document, documents
from tests.programs import missing_line, run_program

#: Blocks that are not executed. `pyi` is a signature, `text` a sketch, `output` the output of the
#: program, `py` a program for another system, and `golden` bytes of the wire protocol, which the
#: tests of mesh-wire read.
SHOWN = frozenset({"console", "golden", "json", "mermaid", "output", "py", "pyi", "text"})
LANGUAGES = SHOWN | {"python", "rust", "sql", "toml", "yaml"}

#: The Python blocks are separate files: some fail on purpose, and others need several ranks.
RUN_BY_CONSOLE_BLOCKS = (
    "docs/guides/coming-from-torchrun.md",
    "docs/guides/find-a-race.md",
    "docs/guides/reproduce-a-failure.md",
)

#: Documents that import large libraries, and use those parts of Mesh that another document uses.
SLOW = {"docs/guides/lightning-and-accelerate.md"}

RUNNING = [
    document
    for document in documents()
    if any(block.language == "python" for block in document.blocks())
    and document.name not in RUN_BY_CONSOLE_BLOCKS
]


def program(blocks: list[Block]) -> str:
    """Put the Python blocks on the same line numbers as in the document.

    A traceback then shows the line of the document.
    """
    lines: list[str] = []
    for block in blocks:
        if block.language == "python":
            lines += [""] * (block.first_line - 1 - len(lines))
            lines += block.lines
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("document", documents(), ids=lambda one: one.name)
def test_every_block_has_a_known_language(document: Document) -> None:
    odd = [block.first_line for block in document.blocks() if block.language not in LANGUAGES]
    assert odd == [], f"write one of {sorted(LANGUAGES)} after the fence"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(one, id=one.name, marks=pytest.mark.slow if one.name in SLOW else ())
        for one in RUNNING
    ],
)
def test_python_blocks_run_and_print_the_shown_output(document: Document, tmp_path: Path) -> None:
    blocks = list(document.blocks())
    # The document may have the name of a standard module, so the script has another name.
    script = tmp_path / f"of_{document.path.stem}.py"
    script.write_text(program(blocks), encoding="utf-8")
    printed = run_program(script, cwd=tmp_path, limit_s=270)
    shown = [line for block in blocks if block.language == "output" for line in block.lines]
    assert missing_line(printed, [line for line in shown if line.strip()]) is None, printed


def test_line_numbers_of_the_program_match_the_document() -> None:
    blocks = [Block("python", 3, ("a = 1",)), Block("text", 5, ("x",)), Block("python", 8, ("b",))]
    assert program(blocks).splitlines() == ["", "", "a = 1", "", "", "", "", "b"]
