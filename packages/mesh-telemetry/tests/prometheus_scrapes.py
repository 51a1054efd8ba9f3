"""Scrapes a program that serves telemetry, and reads the reply with the parsers of Prometheus."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mesh_telemetry._serve.serving import Serving

OPENMETRICS = "application/openmetrics-text"
LIMIT_S = 60.0


class Scrape(NamedTuple):
    """The reply to a scrape."""

    content_type: str
    text: str
    families: Mapping[str, Any]
    """The families of the parser, by name."""

    def samples(self, name: str, /, **labels: str) -> list[Any]:
        """Return the samples with this name and these labels."""
        return [
            sample
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def total(self, name: str, /, **labels: str) -> float:
        """Return the sum of the samples with this name and these labels."""
        return sum(sample.value for sample in self.samples(name, **labels))


def scraped(serving: Serving, accept: str = "text/plain") -> Scrape:
    """Scrape a program."""
    headers = {"Authorization": f"Bearer {serving.token}", "Accept": accept}
    request = urllib.request.Request(f"{serving.url}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
        return parsed(reply.headers["Content-Type"], reply.read().decode())


def scraped_until(
    serving: Serving, name: str, total: float, accept: str = "text/plain", /, **labels: str
) -> Scrape:
    """Scrape until a sum has a value, because processes write events ten times a second."""

    def found() -> Scrape | None:
        scrape = scraped(serving, accept)
        return scrape if scrape.total(name, **labels) == total else None

    scrape = wait_until(found, LIMIT_S)
    assert scrape is not None, "it is the result of the condition"
    return scrape


def parsed(content_type: str, text: str) -> Scrape:
    """Parse a reply, and check that no series is sent twice."""
    parse = parse_openmetrics if content_type.startswith(OPENMETRICS) else parse_text
    families = {family.name: family for family in parse(text)}
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "a family is sent twice"
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series)), "a series is sent twice"
    return Scrape(content_type, text, families)


def counters(scrape: Scrape) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield every series that must not decrease, with its value."""
    for family in scrape.families.values():
        if family.type in ("counter", "histogram"):
            for sample in family.samples:
                yield (sample.name, *map(str, sorted(sample.labels.items()))), sample.value
