"""Names the tests that failed and then passed when they were run again: `pytest -p tools.unsteady`.

With `--reruns`, pytest says only how many there were. Each is a fault all the same, of the test or
of what it tests, so what it said stands in the output, and `tools.closing` repeats the name.
"""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows how each of them failed."""
    stats = terminalreporter.stats
    failed = {report.nodeid for word in ("failed", "error") for report in stats.get(word, ())}
    unsteady = [report for report in stats.get("rerun", ()) if report.nodeid not in failed]
    if unsteady:
        terminalreporter.section("failed, and passed when run again")
    for report in unsteady:
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.section(title, "-")
            terminalreporter.write_line(text)
    for report in unsteady:
        terminalreporter.write_line(f"UNSTEADY {report.nodeid} - {_reason(report)}")


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = report.longreprtext.strip() if crash is None else crash.message
    return message.partition("\n")[0]
