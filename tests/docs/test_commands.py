"""Commands in documents exist. CI runs the documented test command."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import Document, documents
from tools.workspace import ROOT, packages

README = Document(ROOT / "README.md")

#: Third-party commands, whose arguments are not checked.
FOREIGN = frozenset(
    {
        "cargo",
        "cat",
        "cd",
        "echo",
        "git",
        "kubectl",
        "maturin",
        "mkdir",
        "pre-commit",
        "rm",
        "sed",
        "torchrun",
    }
)


def decorated(path: Path, decorator: str) -> set[str]:
    """Return the functions of a file that have a decorator, with or without arguments."""
    functions = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    return {
        function.name
        for function in functions
        if any(ast.unparse(one).startswith(decorator) for one in function.decorator_list)
    }


DISTRIBUTIONS = {one.distribution for one in packages()}
SESSIONS = decorated(ROOT / "noxfile.py", "nox.session")
TOOLS = set(re.findall(r'^    Command\("(\w+)"', (ROOT / "tools/__main__.py").read_text(), re.M))
MESH_COMMANDS = set(
    re.findall(
        r'^    "(\w+)": "\w+:\w+",$',
        (ROOT / "packages/mesh-jobs/src/mesh_jobs/_cli/app.py").read_text(),
        re.M,
    )
).union(*(one.project.get("entry-points", {}).get("mesh.commands", {}) for one in packages()))


def shown_commands(document: Document) -> Iterator[tuple[int, list[str]]]:
    """Yield the commands that a document shows."""
    for number, command, _ in document.commands():
        yield number, shlex.split(command, comments=True)


def shown_files(document: Document) -> set[str]:
    """Return the names of the Python files that a document shows; each name is a first line."""
    blocks = [block for block in document.blocks() if block.language in ("py", "python")]
    return {block.lines[0].removeprefix("# ") for block in blocks if block.lines}


def complaint(words: list[str], files: frozenset[str] = frozenset()) -> str | None:
    """Return the problem with a command, as far as the repository shows it, or None.

    Args:
        words: The command.
        files: The files that the document shows.
    """
    match words:
        case ["python3", script, *_] if script in files:
            return None
        case ["python3", "-m", "pytest", *_]:
            return None
        case ["python3", "-c", *_]:
            return None
        case ["python3", "-m", "tools", "nox", *rest]:
            return complaint(["nox", *rest])
        case ["python3", "-m", "tools", "run", script, *_]:
            return None if (ROOT / script).is_file() else f"no script {script}"
        case ["python3", "-m", "tools", name, *_]:
            return None if name in TOOLS else f"no command {name}"
        case ["nox", "-l"]:
            return None
        case ["nox", "-s", session, *_]:
            name = session.partition("(")[0]
            return None if name in SESSIONS else f"no session {name}"
        case ["pip", "install", *names]:
            unknown = [
                name
                for name in names
                if name.partition("[")[0] not in DISTRIBUTIONS
                and not name.startswith(("-", "dist/"))
            ]
            return f"not packages of this project: {unknown}" if unknown else None
        case ["python3", "-m", "venv", _]:
            return None
        case [program, *rest] if program.startswith(".venv/bin/"):
            return complaint([program.removeprefix(".venv/bin/"), *rest])
        case ["pytest", path, *_] if (ROOT / path).exists():
            return None
        case ["python3", "-m", module, *_] if module.startswith("tools."):
            path = ROOT / f"{module.replace('.', '/')}.py"
            return None if path.is_file() else f"no command {module}"
        case ["python3", "-m", module, *_] if module.startswith("mesh_"):
            package, _, name = module.partition(".")
            found = sorted(ROOT.glob(f"packages/*/src/{package}/{name}.py"))
            return None if found else f"no command {module}"
        case ["mesh", name, *_]:
            return None if name.rstrip(";") in MESH_COMMANDS else f"no command mesh {name}"
        case ["python3", script, *_] if (ROOT / script).is_file():
            return None
        case [name, *_] if name in FOREIGN:
            return None
    return "not a command that the tree knows"


@pytest.mark.parametrize("document", documents(), ids=lambda one: one.name)
def test_commands_exist(document: Document) -> None:
    files = frozenset(shown_files(document))
    wrong = [
        f"{document.name}:{line}: {shlex.join(words)}: {said}"
        for line, words in shown_commands(document)
        if (said := complaint(words, files))
    ]
    assert wrong == []


def test_readme_runs_the_main_job_and_the_tests() -> None:
    commands = [shlex.join(words) for _, words in shown_commands(README)]
    assert "python3 -m tools run examples/train_digits.py" in commands
    assert "python3 -m tools test" in commands


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert script.strip().endswith("exec python3 -m tools test")
