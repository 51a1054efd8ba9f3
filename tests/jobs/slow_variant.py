"""Slow variants of tests that a conformance kit contains."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from mesh_jobs.testing import JobConformance

Kind = TypeVar("Kind", bound=JobConformance)

#: Tests whose subject hardly depends on the scheduler. Those of `ProcessJob` run at every change,
#: and so do most of `KubernetesJob`, those of other backends each night.
OF_ANY_BACKEND = (
    "test_another_spec_changes_nothing_and_says_what_differs",
    "test_hosts_are_used_again_during_and_after_the_silence",
    "test_two_jobs_at_once_do_not_meet",
    "test_what_nobody_heard_can_be_asked_again",
    "test_nothing_runs_twice_after_applying_twice",
    "test_a_program_gets_the_same_mesh_again",
    "test_what_happened_is_told_in_order",
    "test_what_a_killed_program_had_begun_can_be_killed",
    "test_a_kill_that_was_killed_is_finished",
)


def slow_variant(test: Callable[..., None]) -> Callable[..., None]:
    """Return a copy of a test that is marked as slow, for another test class with the same test."""

    @functools.wraps(test)
    def variant(self: Any, /, *args: Any, **kwargs: Any) -> None:
        test(self, *args, **kwargs)

    marked: Callable[..., None] = pytest.mark.slow(variant)
    return marked


def with_slow(*names: str) -> Callable[[type[Kind]], type[Kind]]:
    """Mark these tests of a class as slow, because another class tests the same behaviour."""

    def marked(kind: type[Kind]) -> type[Kind]:
        for name in names:
            setattr(kind, name, slow_variant(getattr(kind, name)))
        return kind

    return marked
