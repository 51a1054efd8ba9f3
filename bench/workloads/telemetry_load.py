"""The overhead of telemetry for a program that sends at full speed, and its memory."""

from __future__ import annotations

import statistics

from bench.drivers.telemetry_program import TelemetryDriver
from bench.record import Recorder
from bench.recorded import RecordedProgram
from bench.scale import QUICK, Scale
from bench.trees import MIB

_STREAMS = ("pipelined", "one_way")
#: Enough messages to fill the space that a process has for them.
_LOAD_MESSAGES = 500_000
_LOAD_BLOCK = 20_000


def rate(driver: TelemetryDriver, scale: Scale, record: Recorder) -> None:
    """Send with a recorded program and one that is not recorded, in turn.

    Two identical processes may differ in speed by chance, so several pairs are measured.
    """
    pairs, blocks, n = (1, 2, 2_000) if scale is QUICK else (3, 8, scale.stream_len)
    for _ in range(pairs):
        programs = [RecordedProgram(driver.name, is_recorded=on) for on in (False, True)]
        for stream in _STREAMS:
            for each in programs:
                each.ask(stream, n // 4)
            for at in range(blocks):
                # The order alternates.
                order = programs if at % 2 else programs[::-1]
                took = {each: each.ask(stream, n) for each in order}
                plain, recorded = (took[each] for each in programs)
                record.value(stream, plain / recorded, "", plain_s=plain, recorded_s=recorded)
        for each in programs:
            each.close()


def memory(driver: TelemetryDriver, scale: Scale, record: Recorder) -> None:
    """Compare the memory of the workers of two programs after the same load."""
    n = 20_000 if scale is QUICK else _LOAD_MESSAGES
    own: dict[bool, int] = {}
    for is_recorded in (False, True):
        program = RecordedProgram(driver.name, is_recorded=is_recorded)
        before = program.ask("kept")
        sizes = []
        for _ in range(n // _LOAD_BLOCK):
            program.ask("one_way", _LOAD_BLOCK)
            sizes.append(program.ask("own"))
        own[is_recorded] = int(statistics.median(sizes[-5:]))
        if is_recorded:
            folder = program.ask("folder")
            record.value("telemetry_process", max(0, program.ask("kept") - before) / MIB, "MiB")
        program.close()
    grown = max(0, own[True] - own[False])
    record.value("folder", folder / MIB, "MiB")
    record.value("own", grown / MIB, "MiB")
    record.value("proc", (folder + grown) / MIB, "MiB")
