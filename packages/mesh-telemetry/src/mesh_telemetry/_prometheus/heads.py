"""The metric families that Mesh itself provides, in the order in which they are sent."""

from __future__ import annotations

from mesh_telemetry._prometheus.family import FamilyHead

__all__ = [
    "ACTORS",
    "CALL_DURATION",
    "CPU",
    "DERIVED",
    "DROPPED",
    "FAILURES",
    "HANGS",
    "HEADS",
    "HOSTS",
    "HOSTS_UNREACHABLE",
    "MEMORY",
    "POINTS_OMITTED",
    "PROCESSES",
    "PROCESSES_UNRESPONSIVE",
    "QUEUE_LENGTH",
    "SCRAPE_DURATION",
    "SEGMENTS_MISSED",
    "SERIES_OMITTED",
]

HOSTS = FamilyHead("mesh_hosts", "gauge", "", "Hosts of the program, by state.")
PROCESSES = FamilyHead("mesh_processes", "gauge", "", "Processes, by mesh and state.")
CPU = FamilyHead(
    "mesh_process_cpu_seconds",
    "counter",
    "seconds",
    "CPU time of a rank, in seconds, including its processes that have exited.",
)
MEMORY = FamilyHead(
    "mesh_process_resident_memory_bytes",
    "gauge",
    "bytes",
    "Resident memory of the process of a rank, in bytes.",
)
ACTORS = FamilyHead("mesh_actors", "gauge", "", "Actors, by process mesh, name, class and state.")
QUEUE_LENGTH = FamilyHead(
    "mesh_queue_length", "gauge", "", "Messages in the mailbox of an actor that wait for it."
)
CALL_DURATION = FamilyHead(
    "mesh_call_duration_seconds",
    "histogram",
    "seconds",
    "Time from a call to its answer, in the caller, by endpoint; error_type is the fault code.",
)
_SENT = FamilyHead("mesh_messages_sent", "counter", "", "Messages that were sent, by endpoint.")
_SENT_BYTES = FamilyHead(
    "mesh_messages_sent_bytes",
    "counter",
    "bytes",
    "Length of the sent messages without shared parts, in bytes, by endpoint.",
)
_RECEIVED = FamilyHead(
    "mesh_messages_received", "counter", "", "Messages that were received, by endpoint."
)
_RECEIVED_BYTES = FamilyHead(
    "mesh_messages_received_bytes",
    "counter",
    "bytes",
    "Length of the received messages without shared parts, in bytes, by endpoint.",
)
FAILURES = FamilyHead(
    "mesh_failures", "counter", "", "Failures of actors, and processes that died, by mesh."
)
HANGS = FamilyHead("mesh_hangs", "gauge", "", "Ranks that keep others waiting now, by kind.")
DROPPED = FamilyHead(
    "mesh_telemetry_dropped_events",
    "counter",
    "",
    "Events that are missing from the tables, by family and reason.",
)
SEGMENTS_MISSED = FamilyHead(
    "mesh_telemetry_segments_missed",
    "counter",
    "",
    "Files of events that were evicted before they were counted.",
)
POINTS_OMITTED = FamilyHead(
    "mesh_telemetry_points_omitted",
    "counter",
    "",
    "Data points without a series: the limit of series was reached, or names are in conflict.",
)
SERIES_OMITTED = FamilyHead(
    "mesh_telemetry_series_omitted",
    "gauge",
    "",
    "Series that this scrape leaves out: the limit was reached, or names are in conflict.",
)
PROCESSES_UNRESPONSIVE = FamilyHead(
    "mesh_telemetry_processes_unresponsive",
    "gauge",
    "",
    "Processes that did not report their actors in time.",
)
HOSTS_UNREACHABLE = FamilyHead(
    "mesh_telemetry_hosts_unreachable",
    "gauge",
    "",
    "Hosts whose telemetry process did not reply; their series are missing.",
)
SCRAPE_DURATION = FamilyHead(
    "mesh_telemetry_scrape_duration_seconds",
    "gauge",
    "seconds",
    "Time in which this scrape collected its metrics, in seconds.",
)

#: The families that are derived from messages, by their names in OpenTelemetry.
DERIVED = {
    "mesh.call.duration": CALL_DURATION,
    "mesh.messages.sent": _SENT,
    "mesh.messages.sent.bytes": _SENT_BYTES,
    "mesh.messages.received": _RECEIVED,
    "mesh.messages.received.bytes": _RECEIVED_BYTES,
}

#: All families.
HEADS = (
    HOSTS,
    HOSTS_UNREACHABLE,
    PROCESSES,
    CPU,
    MEMORY,
    ACTORS,
    QUEUE_LENGTH,
    *DERIVED.values(),
    FAILURES,
    HANGS,
    DROPPED,
    SEGMENTS_MISSED,
    POINTS_OMITTED,
    SERIES_OMITTED,
    PROCESSES_UNRESPONSIVE,
    SCRAPE_DURATION,
)
