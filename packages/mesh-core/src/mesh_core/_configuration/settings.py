"""Definitions of the settings: name, default, accepted values and purpose."""

from __future__ import annotations

from mesh_core._configuration.values import choice, count, flag, folder, modules, seconds, size

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
        cleanup_timeout_s: Duration
        deadlock_probe_s: Duration
        event_ring_len_max: int
        failure_exit_grace_s: Duration
        failure_grace_s: Duration
        frame_len_max: Size
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
    "attach_timeout_s": Setting(
        30.0, seconds(), "How long a worker is asked to join before it is given up."
    ),
    "call_timeout_s": Setting(
        None,
        seconds(above_zero=True, none="no limit"),
        "How long a call may take before it raises `DeadlineExceeded`.",
    ),
    "cast_fanout": Setting(
        16, count(2, 1_024), "To how many hosts each host of a multicast tree sends."
    ),
    "cleanup_timeout_s": Setting(
        10.0, seconds(), "How long an actor's `__cleanup__` may take before it is given up."
    ),
    "deadlock_probe_s": Setting(
        1.0,
        seconds(above_zero=True),
        "How long a wait lasts before it is looked at for a circle of actors.",
    ),
    "event_ring_len_max": Setting(
        65_536, count(16, 2**28), "How many events a process keeps for subscribers that are behind."
    ),
    "failure_exit_grace_s": Setting(
        5.0, seconds(), "How long a failing program may take to clean up before it is ended."
    ),
    "failure_grace_s": Setting(
        1.0,
        seconds(),
        "How long a failure waits for someone to catch it before it goes to the owner.",
    ),
    "frame_len_max": Setting(
        2**30, size(2**16, 2**30), "The longest message that goes through a link in one piece."
    ),
    "heartbeat_s": Setting(
        1.0, seconds(above_zero=True), "How often hosts tell each other that they live."
    ),
    "host_lease_s": Setting(
        10.0,
        seconds(above_zero=True),
        "How long a worker serves a job whose program gives no sign of life.",
    ),
    "link_outbox_bytes_max": Setting(
        64 * 2**20,
        size(2**16),
        "How much may wait to be written to one process before its senders wait.",
    ),
    "log_dir": Setting(
        None,
        folder(none="the job's own directory"),
        "Where each process's output is kept as a file.",
    ),
    "log_forward": Setting(True, flag(), "Whether the output of all processes is shown here."),
    "log_group_window_s": Setting(
        0.2,
        seconds(),
        "For how long equal lines of several ranks are gathered; 0 shows each alone.",
    ),
    "log_prefix": Setting(True, flag(), "Whether each line is shown behind its mesh and rank."),
    "log_tail_lines": Setting(
        20, count(0, 10_000), "How many last lines of a dead process's output go into its error."
    ),
    "mailbox_len_max": Setting(
        10_000, count(1, 2**31 - 1), "How many messages may wait for one actor."
    ),
    "preload": Setting(
        None,
        modules(none="what the program itself has imported"),
        "Which modules new processes find imported already.",
    ),
    "process_start": Setting(
        "fork",
        choice("fork", "exec"),
        "Whether processes are forked from a warm template or started afresh.",
    ),
    "segment_pool_bytes_max": Setting(
        4 * 2**30, size(2**20), "How much shared memory the large payloads under way may take."
    ),
    "segment_threshold_bytes": Setting(
        65_536, size(1_024), "From which size on a buffer travels in shared memory."
    ),
    "spawn_timeout_s": Setting(
        120.0, seconds(above_zero=True), "How long new processes may take until they are ready."
    ),
    "stop_grace_s": Setting(
        5.0, seconds(), "How long a process that is told to stop may take before it is killed."
    ),
    "unresponsive_timeout_s": Setting(
        60.0,
        seconds(),
        "How long a process or host that exists may be silent before it is declared dead.",
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
