"""Runs mypy and pyright and returns the lines with errors."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.workspace import ROOT

#: Errors by file and line.
Complaints = dict[Path, dict[int, str]]

_MYPY_ERROR = re.compile(r"(?P<path>.+?):(?P<line>\d+): error: (?P<text>.*)")


def mypy(files: Sequence[Path]) -> Complaints:
    """Run mypy in strict mode over all files together."""
    options = ["--strict", "--config-file=", "--no-error-summary", "--hide-error-context"]
    cache = "--cache-dir=/dev/null"
    printed = _run("mypy", [*options, cache, *map(str, files)])
    complaints: Complaints = {file: {} for file in files}
    for line in printed.splitlines():
        if found := _MYPY_ERROR.match(line):
            path = (ROOT / found["path"]).resolve()
            assert path in complaints, f"mypy complains elsewhere: {line}"
            complaints[path][int(found["line"])] = found["text"]
    return complaints


def pyright(files: Sequence[Path]) -> Complaints:
    """Run pyright over all files together."""
    report = json.loads(_run("pyright", ["--outputjson", *map(str, files)]))
    complaints: Complaints = {file: {} for file in files}
    for one in report["generalDiagnostics"]:
        if one["severity"] == "error":
            line = one["range"]["start"]["line"] + 1
            complaints[Path(one["file"]).resolve()][line] = one["message"]
    return complaints


def _run(module: str, args: Sequence[str]) -> str:
    command = [sys.executable, "-m", module, *args]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    # Status 1 means that errors were found, as expected. A higher status is a failure of the
    # checker.
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return run.stdout
