"""Slow variants of tests that a conformance kit contains."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from mesh_jobs.testing import JobConformance

Kind = TypeVar("Kind", bound=JobConformance)

#: Tests whose subject hardly depends on the scheduler. Every change runs them for `ProcessJob`, and
#: most of them for `KubernetesJob`; for other backends they run each night.
OF_ANY_BACKEND = (
    "test_applying_a_different_spec_changes_nothing_and_lists_the_differences",
    "test_hosts_are_reused_during_and_after_a_scheduler_outage",
    "test_two_concurrent_jobs_are_independent",
    "test_a_failed_submission_can_be_retried",
    "test_applying_a_job_twice_starts_each_worker_once",
    "test_a_second_state_call_returns_the_same_mesh",
    "test_events_are_reported_in_order",
    "test_a_job_of_an_interrupted_apply_can_be_killed",
    "test_the_next_apply_completes_an_interrupted_kill",
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
