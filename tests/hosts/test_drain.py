"""Hosts of separate machines move under load, and no call is lost, repeated or failed."""

from __future__ import annotations

import pytest

from tests.hosts.conftest import Worlds
from tests.hosts.drains.run import run


@pytest.mark.slow
def test_no_call_is_lost_failed_or_executed_twice(worlds: Worlds) -> None:
    verdict = run(6, 7, state_bytes=8 << 20)
    assert verdict.is_right, str(verdict)
    assert verdict.balance.answered > 100
