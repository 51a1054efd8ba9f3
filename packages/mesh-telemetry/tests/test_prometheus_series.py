"""Names, limits and text formats of metrics for Prometheus."""

from __future__ import annotations

import math

import pytest
from prometheus_scrapes import parsed

from mesh_telemetry._metrics.points import HistogramPoint, NumberPoint
from mesh_telemetry._prometheus.exposition import (
    OPENMETRICS,
    TEXT,
    exposition,
    is_openmetrics_accepted,
)
from mesh_telemetry._prometheus.family import Family, FamilyHead, HistogramValue, Sample
from mesh_telemetry._prometheus.heads import DERIVED, HEADS
from mesh_telemetry._prometheus.host_series import HostSeries
from mesh_telemetry._prometheus.names import attribute_labels, head_of, unit_name

STEPS = FamilyHead("steps", "counter", "", "Steps.", True)
LOSS = FamilyHead("loss", "gauge", "", "Loss.", True)
SIZES = FamilyHead("sizes", "histogram", "", "Sizes.", True)
SIZE = HistogramValue((1.0, 2.0), (1, 0, 2), 9.0)
AWKWARD = 'a "quoted" \\ back\nslash, {braces} and ü'


@pytest.mark.parametrize(
    ("point", "name"),
    [
        (NumberPoint("steps", "1", 0, is_sum=True, is_monotonic=True), "steps"),
        (NumberPoint("steps_total", "", 0, is_sum=True, is_monotonic=True), "steps"),
        (NumberPoint("read.bytes", "By", 0, is_sum=True, is_monotonic=True), "read_bytes"),
        (NumberPoint("queue", "{message}", 0, is_sum=True), "queue"),
        (NumberPoint("use", "1", 0), "use_ratio"),
        (NumberPoint("speed", "By/s", 0), "speed_bytes_per_second"),
        (NumberPoint("2nd try!", "", 0), "_2nd_try_"),
        (HistogramPoint("step.time", "ms", 0), "step_time_milliseconds"),
    ],
)
def test_names_follow_the_rules_of_opentelemetry(
    point: NumberPoint | HistogramPoint, name: str
) -> None:
    assert head_of(point).name == name


def test_derived_metrics_have_the_same_names_as_in_otlp() -> None:
    for name, head in DERIVED.items():
        suffix = f"_{head.unit}" if head.unit else ""
        assert head.name in (name.replace(".", "_"), name.replace(".", "_") + suffix)
    assert unit_name("s") == DERIVED["mesh.call.duration"].unit


def test_attributes_do_not_replace_labels_of_mesh() -> None:
    found = dict(attribute_labels({"rank": 7, "a.b": 1, "a b": True, "none": None, "x": "y" * 999}))
    assert found.pop("x") == "y" * 128
    assert found == {"exported_rank": "7", "a_b": "true;1"}


def test_series_over_the_limit_are_omitted_and_counted() -> None:
    series = HostSeries(3)
    for number in range(5):
        series.add(STEPS, (("id", str(number)),), 1)
    series.add(STEPS, (("id", "0"),), 1)
    series.add_histogram(SIZES, (), SIZE)
    (family,) = series.families()
    assert [sample.value for sample in family.samples] == [2, 1, 1]
    assert series.omitted == {"limit": 3, "conflict": 0, "invalid": 0}


def test_metrics_of_the_program_do_not_crowd_out_metrics_of_mesh() -> None:
    series = HostSeries(1)
    series.add(STEPS, (("id", "0"),), 1)
    series.add(STEPS, (("id", "1"),), 1)
    series.add(DERIVED["mesh.messages.sent"], (), 1)
    assert len(series.families()) == 2


@pytest.mark.parametrize(
    "head",
    [
        FamilyHead("steps", "gauge", "", "", True),
        FamilyHead("steps_total", "gauge", "", "", True),
        FamilyHead("mesh_hosts", "counter", "", "", True),
        FamilyHead("mesh_call_duration_seconds_count", "gauge", "", "", True),
    ],
)
def test_a_metric_with_a_conflicting_name_is_omitted(head: FamilyHead) -> None:
    series = HostSeries(100)
    series.add(STEPS, (), 1)
    if head.kind == "gauge":
        series.set(head, (), "proc", 1, 1.0)
    else:
        series.add(head, (), 1)
    assert [family.head for family in series.families()] == [STEPS]
    assert series.omitted["conflict"] == 1


def test_counters_reject_negative_and_non_finite_values() -> None:
    series = HostSeries(100)
    for value in (1, -1, math.nan, math.inf):
        series.add(STEPS, (), value)
    assert [sample.value for family in series.families() for sample in family.samples] == [1]
    assert series.omitted["invalid"] == 3


def test_histograms_add_up_and_keep_their_bounds() -> None:
    series = HostSeries(100)
    series.add_histogram(SIZES, (), SIZE)
    series.add_histogram(SIZES, (), SIZE)
    series.add_histogram(SIZES, (), HistogramValue((5.0, 6.0), (1, 1, 1), 1.0))
    (sample,) = series.families()[0].samples
    assert sample.value == HistogramValue((1.0, 2.0), (2, 0, 4), 18.0)
    assert series.omitted["conflict"] == 1


def test_gauges_exist_as_long_as_their_processes() -> None:
    series = HostSeries(1)
    series.set(LOSS, (), "old", 1, 0.5)
    series.set(LOSS, (), "new", 3, 0.25)
    series.set(LOSS, (), "new", 2, 99.0)
    assert series.families() == [Family(LOSS, [Sample((), 0.25)])]
    series.remove_gauges("new")
    assert series.families() == [Family(LOSS, [Sample((), 0.5)])]
    series.remove_gauges("old")
    assert series.families() == []
    series.set(LOSS, (("a", "b"),), "next", 1, 1.0)
    assert series.omitted["limit"] == 0, "its space is free again"


@pytest.mark.parametrize("content_type", [TEXT, OPENMETRICS])
def test_both_parsers_read_every_value_and_label(content_type: str) -> None:
    labels = (("name", AWKWARD),)
    families = [
        Family(STEPS._replace(text=AWKWARD), [Sample(labels, 3)]),
        Family(LOSS, [Sample((("at", str(v)),), v) for v in (-math.inf, math.inf, 1e-300, -2.5)]),
        Family(SIZES, [Sample(labels, SIZE)]),
        *(Family(head, []) for head in HEADS),
    ]
    text = exposition(families, is_openmetrics=content_type == OPENMETRICS).decode()
    scrape = parsed(content_type, text)
    (steps,) = scrape.samples("steps_total")
    assert (steps.labels, steps.value) == ({"name": AWKWARD}, 3)
    assert [one.value for one in scrape.samples("loss")] == [-math.inf, math.inf, 1e-300, -2.5]
    buckets = [(one.labels["le"], one.value) for one in scrape.samples("sizes_bucket")]
    assert buckets == [("1.0", 1), ("2.0", 1), ("+Inf", 3)]
    assert scrape.total("sizes_sum", name=AWKWARD) == 9
    assert scrape.total("sizes_count") == 3
    types = {name: family.type for name, family in scrape.families.items()}
    assert types["steps"] == types["mesh_messages_sent"] == "counter"


def test_openmetrics_has_no_sum_that_can_decrease() -> None:
    value = HistogramValue((-1.0, 0.0), (2, 0, 0), -8.0)
    text = exposition([Family(SIZES, [Sample((), value)])], is_openmetrics=True).decode()
    assert [one.value for one in parsed(OPENMETRICS, text).samples("sizes_bucket")] == [2, 2, 2]
    assert "sizes_sum" not in text


@pytest.mark.parametrize(
    ("accept", "is_accepted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0; q=0.5, text/plain;q=0.3", True),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str, is_accepted: bool) -> None:
    assert is_openmetrics_accepted(accept) is is_accepted
