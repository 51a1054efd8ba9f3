"""Shows why a test run ends at once: `pytest -p tools.unhandled`.

A failure that no owner handles ends a program, and therefore pytest. Its report, and the reports of
failed tests, would be lost with the output that pytest has captured.
"""

import os
import sys
from typing import Any

import pytest

from tools.captured import uncaptured_stderr

_failed: list[str] = []


def pytest_configure() -> None:
    """Keep the standard error, which is not captured yet."""
    uncaptured_stderr()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the reports of failed tests."""
    if report.failed:
        _failed.append(f"{report.nodeid} ({report.when})\n{report.longreprtext}")


def pytest_collection_finish() -> None:
    """Show failures that end the run, unless the tests replace the hook themselves."""
    policy = sys.modules.get("mesh_core._supervision.policy")
    if policy is None:
        return

    def show(failure: Any) -> None:
        text = "\n".join(["", "a failure that no test handles:", failure.report(), *_failed, ""])
        os.write(uncaptured_stderr(), text.encode(errors="replace"))
        policy.unhandled_fault_hook(failure)

    # Hooks that tests assign to `mesh_core.unhandled_fault_hook` take precedence.
    policy.set_unhandled_fault_hook(show)
