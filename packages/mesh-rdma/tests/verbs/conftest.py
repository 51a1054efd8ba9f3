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
        "test_threads_do_not_interfere_with_each_other",
        "test_tasks_await_transfers_concurrently",
        "test_processes_read_at_the_same_time",
        "test_an_empty_batch_succeeds_and_invalid_operations_are_refused",
        "test_batch_fails_as_a_whole",
        "test_words_are_64_bits_wide_and_aligned",
        "test_a_handle_is_small_and_equal_to_its_copies",
        "test_odd_offsets_and_slices_of_slices",
        "test_a_copy_of_zero_bytes_succeeds",
        "test_local_memory_of_any_shape",
        "test_a_short_copy_completes_without_a_waiting_thread",
        "test_each_read_returns_the_current_content",
        "test_read_only_memory_is_refused_at_the_call",
        "test_out_of_bounds_ranges_are_refused_at_the_call",
        "test_all_operations_fail_after_a_drop",
        "test_a_drop_does_not_affect_other_buffers_of_the_owner",
        "test_a_drop_by_one_holder_affects_the_other_holder",
        "test_a_forwarded_handle_keeps_its_buffer_alive",
        "test_collected_handles_free_the_registration",
        "test_an_unopened_handle_expires",
        "test_a_timeout_of_zero_fails_without_a_transfer",
        "test_an_invalid_transfer_timeout_is_refused",
        "test_a_write_changes_nothing_after_its_deadline",
        "test_a_transfer_writes_nothing_after_it_is_cancelled",
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
