"""The table `steps`: how each training step of a rank spends its time."""

from __future__ import annotations

from pathlib import Path

from mesh_core import Actor, endpoint, this_host
from mesh_telemetry import Telemetry, mark_step
from mesh_telemetry._steps.steps_file import Step, StepsFile, read_steps

LIMIT_S = 60.0


class Trainer(Actor):
    """Marks its steps."""

    @endpoint
    def train(self, *steps: int | None) -> None:
        """End steps with these numbers."""
        for step in steps:
            mark_step(step)


def test_the_latest_steps_are_kept(tmp_path: Path) -> None:
    file = StepsFile(tmp_path)
    for number in range(600):
        file.add(Step(number, number * 10, number * 10 + 10, 2, 3))
    steps = read_steps(str(tmp_path))
    assert [step.number for step in steps] == list(range(600 - 512, 600))
    assert (steps[-1].duration_ns, steps[-1].compute_ns) == (10, 5)


def test_a_process_without_steps_has_no_file(tmp_path: Path) -> None:
    assert read_steps(str(tmp_path)) == []
    (tmp_path / "steps").write_bytes(b"")
    assert read_steps(str(tmp_path)) == []


def test_a_program_marks_its_steps() -> None:
    mark_step()  # Without telemetry, it has no effect.
    with Telemetry() as telemetry:
        procs = this_host().spawn_procs({"gpus": 2}, name="train")
        procs.spawn("trainers", Trainer).train.call(7, 8, None, 20).get(timeout=LIMIT_S)
        rows = telemetry.query("select * from steps order by rank, step").table.to_pylist()
        found = [(row["mesh"], row["rank"], row["step"]) for row in rows]
        # The beginning of the first step is not known.
        assert found == [("train", rank, step) for rank in (0, 1) for step in (8, 9, 20)]
        for row in rows:
            assert row["duration_us"] == row["compute_us"]
            assert (row["input_us"], row["communication_us"]) == (0, 0)
        procs.stop().get(timeout=LIMIT_S)
