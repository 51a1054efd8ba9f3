"""Run pytest, and failed tests once more in a separate process: `python -m tools.twice`.

By then the effects of a failed test on its process and on the machine's load have ended. A test
that passes in the second run still indicates a defect of the test or of the code: it is listed as
`UNSTEADY` at the end, with the reason, and `tools.closing` repeats that.
"""

import gc
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

#: More failures than this are not run again, because they have a common cause.
FAILED_MAX = 10

#: Modules of the tools that are plugins of pytest, in each run.
PLUGINS = ("late", "preloaded", "property_tests", "unhandled", "twice")

_FILE = "failed-reports"
#: A reason in the summary ends after so many characters.
_REASON_LEN_MAX = 600


def main(arguments: Sequence[str]) -> int:
    """Run pytest with these arguments, and return the exit status of the last run."""
    with tempfile.TemporaryDirectory(prefix="mesh-pytest-") as cache:
        plugins = [word for name in PLUGINS for word in ("-p", f"tools.{name}")]
        plugins += ["-o", f"cache_dir={cache}"]
        command = [sys.executable, "-m", "pytest", *plugins, *arguments]
        status = subprocess.call(command)
        failed = _failed_reports(Path(cache))
        names = {name for name, _ in failed}
        if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(names) <= FAILED_MAX:
            return status
        print(f"\n== once more, what failed: {len(names)}", flush=True)
        # `-q` suppresses the summary, which must come from the first run.
        status = subprocess.call([*command, "-q", "--last-failed", "--numprocesses=0"])
        if status == 0:
            for name, reason in failed:
                print(f"UNSTEADY {name} - {reason}", flush=True)
        return status


def _failed_reports(cache: Path) -> list[tuple[str, str]]:
    try:
        lines = (cache / _FILE).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(name, reason) for name, _, reason in (line.partition("\t") for line in lines)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the test modules without garbage collection, and exempt them from it later.

    The modules contain hundreds of thousands of objects. Collections during the imports would find
    nothing to free, and each full collection of a test would visit all of them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


class _Announcer:
    """Prints the name and the reason of each failure at once, in case the run never ends."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # On a separate line, after the dots of other tests.
            self._reporter.write(f"\n{report.nodeid} ({report.when}) - {_reason(report)}\n")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Announce failures in the process that reports to the terminal."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Announcer(reporter))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Store the names and reasons of failures for the parent process."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    cache = Path(session.config.getini("cache_dir"))
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    reports = [one for word in ("failed", "error") for one in reporter.stats.get(word, ())]
    cache.mkdir(exist_ok=True)
    (cache / _FILE).write_text("".join(f"{one.nodeid}\t{_reason(one)}\n" for one in reports))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = report.longreprtext.strip() if crash is None else crash.message
    return " ".join(str(message).split())[:_REASON_LEN_MAX]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
