"""`GET /metrics` of one served program: formats, tokens, errors, and requests at the same time."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_scrapes import OPENMETRICS, scraped, scraped_until
from recorded_actors import LIMIT_S, Worker
from recorded_program import config

from mesh_core import this_host
from mesh_telemetry import Telemetry
from mesh_telemetry._serve.serving import Serving

CALLS = "mesh_call_duration_seconds_count"


@pytest.fixture(scope="module")
def serving(shared_place: Path) -> Iterator[Serving]:
    """A served program for tests that use different endpoints and measurements."""
    with Telemetry(config(shared_place)) as telemetry, telemetry.serve() as made:
        yield made


def test_failed_calls_have_an_error_type_label(serving: Serving) -> None:
    procs = this_host().spawn_procs(name="team")
    worker: Any = procs.spawn("worker", Worker)
    worker.add.call_one(1).get(LIMIT_S)
    with pytest.raises(Exception, match="it is broken"):
        worker.fail.call_one().get(LIMIT_S)
    scrape = scraped_until(serving, CALLS, 1, endpoint="fail")
    assert [one.labels["error_type"] for one in scrape.samples(CALLS, endpoint="fail")] == ["1"]
    scraped_until(serving, CALLS, 1, endpoint="add")
    assert "error_type" not in scrape.samples(CALLS, endpoint="add")[0].labels
    procs.stop().get(LIMIT_S)


def test_openmetrics_is_sent_if_it_is_accepted(serving: Serving) -> None:
    accept = f"{OPENMETRICS};version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
    procs = this_host().spawn_procs(name="team")
    procs.spawn("worker", Worker).work.call_one(1).get(LIMIT_S)
    scrape = scraped_until(serving, "steps_total", 2, accept)
    assert scrape.content_type == f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
    assert scrape.text.endswith("# EOF\n")
    assert scrape.families["mesh_call_duration_seconds"].unit == "seconds"
    procs.stop().get(LIMIT_S)


def test_a_scrape_needs_a_token(serving: Serving) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{serving.url}/metrics", timeout=LIMIT_S)
    assert refused.value.code == 401
    refused.value.close()
    scraped_until(serving, "mesh_hosts", 1, state="up")


def test_concurrent_scrapes_all_get_a_reply(serving: Serving) -> None:
    with ThreadPoolExecutor(8) as threads:
        scrapes = list(threads.map(lambda _: scraped(serving), range(16)))
    assert {scrape.total("mesh_hosts") for scrape in scrapes} == {1}
