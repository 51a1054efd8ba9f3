"""Tests that require a verbs device; `python -m tests.rdma.vm` provides two."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from verbs_peer import Link, linked

from mesh_rdma._verbs.transport import VerbsTransport

#: The length of the memory at both ends of a link.
MEMORY_LEN = 9 << 20

HERE = Path(__file__).parent

#: Conformance tests that depend on the transport least, or that `test_verbs_faults.py` has in
#: another form. Each takes seconds in the virtual machine, so they run there each night; over other
#: transports they run at every change.
SLOW = frozenset(
    {
        "test_threads_do_not_disturb_each_other",
        "test_tasks_wait_side_by_side",
        "test_processes_read_at_the_same_time",
        "test_batch_of_nothing_and_what_a_batch_refuses",
        "test_batch_fails_as_a_whole",
        "test_words_are_64_bits_wide_and_aligned",
        "test_handle_is_small_and_the_same_everywhere",
        "test_odd_offsets_and_slices_of_slices",
        "test_no_bytes_are_copied_at_once",
        "test_local_memory_of_any_shape",
        "test_short_copy_that_nobody_waits_for_is_done",
        "test_the_same_handle_many_times",
        "test_read_only_memory_is_refused_at_the_call",
        "test_bounds_are_refused_at_the_call",
        "test_whatever_is_done_after_a_drop_says_so",
        "test_others_of_the_owner_are_not_touched_by_a_drop",
        "test_two_holders_share_what_one_of_them_ends",
        "test_handle_goes_on_from_hand_to_hand",
        "test_collected_handles_free_the_registration",
        "test_handle_that_nobody_opens_expires",
        "test_no_time_is_no_transfer",
        "test_what_is_no_limit_is_refused",
        "test_no_byte_goes_after_a_deadline",
        "test_cancelled_transfer_writes_nothing_more",
    }
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests."""
    for item in items:
        if isinstance(item, pytest.Function) and item.originalname in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def transport() -> VerbsTransport:
    """The transport of this process."""
    return VerbsTransport()


@pytest.fixture(autouse=True)
def _usable(transport: VerbsTransport) -> None:
    """Skip the tests if verbs are not available."""
    if reason := transport.probe():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def shared_link(transport: VerbsTransport) -> Iterator[Link]:
    """A link to another process over all devices, shared because opening devices there is slow."""
    with linked(transport, MEMORY_LEN) as link:
        yield link


@pytest.fixture
def link(_usable: None, request: pytest.FixtureRequest) -> Link:
    """The link, with registered memory at the other end that contains only zeros."""
    shared_link: Link = request.getfixturevalue("shared_link")
    shared_link.peer.do("renew")
    shared_link.descriptor = shared_link.peer.do("register", True)
    return shared_link


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that is skipped although the kernel supports verbs."""
    report = yield
    if report.skipped and item.path.parent == HERE and Path("/sys/class/infiniband").is_dir():
        report.outcome = "failed"
        report.longrepr = f"skipped, though there are verbs here: {report.longrepr}"
    return report
