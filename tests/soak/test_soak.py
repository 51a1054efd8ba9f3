"""The shortest possible soak that includes every kind of end."""

from __future__ import annotations

import pytest

from tests.soak.run import soak

PROGRAMS = 40


@pytest.mark.timeout(300)
def test_forty_programs_end_as_they_should() -> None:
    verdicts = soak(list(range(PROGRAMS)), seed=0, jobs=2, is_loud=False)
    failed = [f"{v.program.name}: {v.complaint}" for v in verdicts if v.complaint]
    assert not failed, "\n".join(failed)
