"""Definitions of the settings: name, default, accepted values and purpose."""

from __future__ import annotations

from mesh_core._configuration.values import (
    choice,
    count,
    flag,
    folder,
    modules,
    names,
    seconds,
    size,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta
    from os import PathLike
    from typing import Literal, TypedDict

    from mesh_core._configuration.values import Kind

    Duration = float | timedelta | str
    Size = int | str

    class Settings(TypedDict, total=False):
        """The keyword arguments of `configure` and `configured`: any of the settings, by name."""

        attach_timeout_s: Duration
        call_timeout_s: Duration | None
        cast_fanout: int
        check_versions: bool
        cleanup_timeout_s: Duration
        deadlock_probe_s: Duration
        event_ring_len_max: int
        failure_exit_grace_s: Duration
        failure_grace_s: Duration
        frame_len_max: Size
        full_tracebacks: bool
        heartbeat_s: Duration
        host_lease_s: Duration
        link_outbox_bytes_max: Size
        log_dir: str | PathLike[str] | None
        log_forward: bool
        log_group_window_s: Duration
        log_prefix: bool
        log_tail_lines: int
        mailbox_len_max: int
        preload: Iterable[str] | None
        process_start: Literal["fork", "exec"]
        record: Iterable[str] | None
        record_bytes_max: Size
        record_dir: str | PathLike[str] | None
        record_redact: Iterable[str] | None
        segment_pool_bytes_max: Size
        segment_threshold_bytes: Size
        spawn_timeout_s: Duration
        stop_grace_s: Duration
        unresponsive_timeout_s: Duration


__all__ = ["PEER_NAMES", "SETTINGS", "Setting"]


class Setting:
    """Definition of a setting.

    Attributes:
        default: The default value.
        kind: The accepted values.
        purpose: The purpose of the setting, as a sentence.
    """

    __slots__ = ("default", "kind", "purpose")

    def __init__(self, default: object, kind: Kind, purpose: str) -> None:
        self.default = default
        self.kind = kind
        self.purpose = purpose


SETTINGS = {
    "attach_timeout_s": Setting(30.0, seconds(), "Time limit for a worker to join."),
    "call_timeout_s": Setting(
        None,
        seconds(above_zero=True, none="no limit"),
        "Time after which a call raises `DeadlineExceeded`.",
    ),
    "cast_fanout": Setting(
        16,
        count(2, 1_024),
        "Number of hosts to which each host of a multicast tree forwards a message.",
    ),
    "check_versions": Setting(
        True,
        flag(),
        "Refuse workers with another Python version, and warn of packages in other versions.",
    ),
    "cleanup_timeout_s": Setting(10.0, seconds(), "Time limit of an actor's `__cleanup__`."),
    "deadlock_probe_s": Setting(
        1.0,
        seconds(above_zero=True),
        "Time after which a wait is checked for a deadlock.",
    ),
    "event_ring_len_max": Setting(
        65_536,
        count(16, 2**28),
        "Number of events that a process keeps for subscribers that lag behind.",
    ),
    "failure_exit_grace_s": Setting(
        5.0, seconds(), "Time for a failing program to clean up before it is ended."
    ),
    "failure_grace_s": Setting(
        1.0,
        seconds(),
        "Time in which a failure can be caught before it is delivered to the owner.",
    ),
    "frame_len_max": Setting(
        2**30, size(2**16, 2**30), "Longest message that is sent over a connection in one piece."
    ),
    "full_tracebacks": Setting(
        False,
        flag(),
        "Print the frames of Mesh in the traceback of an exception that ends a program.",
    ),
    "heartbeat_s": Setting(1.0, seconds(above_zero=True), "Interval between heartbeats of hosts."),
    "host_lease_s": Setting(
        10.0,
        seconds(above_zero=True),
        "Time for which a worker serves a job whose program sends no heartbeats.",
    ),
    "link_outbox_bytes_max": Setting(
        64 * 2**20,
        size(2**16),
        "Data that can be queued for one process before senders to it wait.",
    ),
    "log_dir": Setting(
        None,
        folder(none="the job's own directory"),
        "Directory with a file for the output of each process.",
    ),
    "log_forward": Setting(True, flag(), "Print the output of all processes in this program."),
    "log_group_window_s": Setting(
        0.2,
        seconds(),
        "Time during which equal lines of several ranks are merged into one; 0 prints each line.",
    ),
    "log_prefix": Setting(True, flag(), "Print the mesh and rank before each line."),
    "log_tail_lines": Setting(
        20,
        count(0, 10_000),
        "Number of last output lines of a dead process that its error contains.",
    ),
    "mailbox_len_max": Setting(
        10_000, count(1, 2**31 - 1), "Number of messages that can wait for one actor."
    ),
    "preload": Setting(
        None,
        modules(none="what the program itself has imported"),
        "Modules that new processes have already imported.",
    ),
    "process_start": Setting(
        "fork",
        choice("fork", "exec"),
        "Fork processes from a template process, or start a new interpreter.",
    ),
    "record": Setting(
        None,
        names(none="nothing"),
        "Names of the meshes whose actors are recorded, or patterns such as `*`.",
    ),
    "record_bytes_max": Setting(
        64 * 2**20, size(2**20), "Data that each process keeps of what it records."
    ),
    "record_dir": Setting(
        None,
        folder(none="`mesh-cases` in the working directory"),
        "Directory for the cases of recorded actors that have failed.",
    ),
    "record_redact": Setting(
        None,
        names(none="nothing"),
        "Names of the arguments, keys and environment variables whose values are not recorded, or "
        "patterns such as `*token*`.",
    ),
    "segment_pool_bytes_max": Setting(
        4 * 2**30, size(2**20), "Shared memory for large payloads in transit."
    ),
    "segment_threshold_bytes": Setting(
        65_536, size(1_024), "Smallest buffer that is sent through shared memory."
    ),
    "spawn_timeout_s": Setting(
        120.0, seconds(above_zero=True), "Time limit for new processes to become ready."
    ),
    "stop_grace_s": Setting(5.0, seconds(), "Time for a process to stop before it is killed."),
    "unresponsive_timeout_s": Setting(
        60.0,
        seconds(),
        "Time for which a process or host can be silent before it is declared dead.",
    ),
}

PEER_NAMES = {
    "actor_spawn_max_idle": "spawn_timeout_s",
    "cleanup_timeout": "cleanup_timeout_s",
    "codec_max_frame_length": "frame_len_max",
    "enable_log_forwarding": "log_forward",
    "mesh_attach_config_timeout": "attach_timeout_s",
    "mesh_orphan_timeout": "host_lease_s",
    "host_spawn_ready_timeout": "spawn_timeout_s",
    "max_cast_fanout": "cast_fanout",
    "mesh_proc_spawn_max_idle": "spawn_timeout_s",
    "prefix_with_rank": "log_prefix",
    "process_exit_timeout": "stop_grace_s",
    "server_heartbeat_interval": "heartbeat_s",
    "stop_grace_period": "stop_grace_s",
    "tail_log_lines": "log_tail_lines",
}
"""Setting names of PyTorch Monarch, accepted so that its programs run unchanged."""
