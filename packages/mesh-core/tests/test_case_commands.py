"""`python -m mesh_core.case`: its output, and that no file makes it do more than print."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from case_samples import (
    LARGE,
    MakesMarker,
    arguments,
    hostile_payload,
    members,
    message,
    pack,
    sample,
    value,
)

from mesh_core._cases.case import Entry, Omitted
from mesh_core._cases.case_file import write_case
from mesh_core.case import main

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from mesh_core._cases.case import Case

SEEDS_PER_TEST = 100

SHOWN = """\
reason       trainers[0] failed: ValueError: bad
saved        2023-11-14 22:13:20 UTC
job          000102030405060708090a0b0c0d0e0f
versions     numpy 2.4.6, python 3.11.7
environment  MESH_SEED
modules      train

actors
* trainers[0]  train:Trainer  process 0.1 on w0, pid 41: 11 entries, 2 not kept
  params[1]  train:Params  process 0.2 on w0, pid 42: 0 entries

trainers[0]
  Trainer((3, 'x')) as rank 0 of (gpus=2)
  ... 2 entries were not kept
  #1 load(<4 MiB, not recorded: budget of the recording>) from 0.0
    #1 returned None
  #2 step((1, 2), <bytes, 75 KiB>, None, scale=0.5) from 0.0
    calls params.get('w') on ranks 0, 1
      rank 1 replied [1.5, {2, 3}]
      rank 0 failed with code 1: ValueError: no w
    reads time time.time: 1.5
    reads random: [7, 1180591620717411303424]
    #2 raised ValueError: bad
  failed: ValueError: bad
    Traceback (most recent call last):
    ValueError: bad
"""


class Printed:
    """Runs commands and captures their output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> str:
        assert main(list(map(str, words))) == 0
        out, err = self._capsys.readouterr()
        assert err == ""
        return out

    def error(self, *words: object) -> str:
        assert main(list(map(str, words))) == 2
        out, err = self._capsys.readouterr()
        assert out == ""
        return err


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    return Printed(capsys)


def with_entries(case: Case, *entries: Entry, **changes: Any) -> Case:
    """Return a case whose failed actor has other entries."""
    first, *rest = case.actors
    return case._replace(actors=(first._replace(entries=entries, **changes), *rest))


def test_the_failed_actor_is_shown_with_its_entries(tmp_path: Path, printed: Printed) -> None:
    write_case(tmp_path / "a.case", sample())
    assert printed("show", tmp_path / "a.case") == SHOWN


def test_values_of_environment_variables_are_not_shown(tmp_path: Path, printed: Printed) -> None:
    read = {"n": None, "source": "environ", "key": "TOKEN", "value": "secret"}
    case = sample(environ={"TOKEN": "secret"})
    write_case(tmp_path / "a.case", with_entries(case, Entry(0, 0, "read", read)))
    other = with_entries(case, Entry(0, 0, "read", {**read, "value": "other"}))
    write_case(tmp_path / "b.case", other)
    text = printed("diff", tmp_path / "a.case", tmp_path / "b.case")
    assert "first difference, outside of messages:" in text
    assert "read of environ TOKEN: set" in text
    assert "secret" not in text
    for words in (["--all"], ["--json"]):
        text = printed("show", tmp_path / "a.case", *words)
        assert "TOKEN" in text
        assert "secret" not in text


def test_another_actor_is_selected_by_name(tmp_path: Path, printed: Printed) -> None:
    write_case(tmp_path / "a.case", sample())
    text = printed("show", tmp_path / "a.case", "--actor", "params[1]")
    assert text.endswith("\nparams[1]\n  no entries\n")
    error = printed.error("show", tmp_path / "a.case", "--actor", "params[0]")
    assert error == (
        "mesh case: the case has no actor params[0]: its actors are: trainers[0], params[1]\n"
    )


def test_the_all_option_shows_every_actor_and_every_entry(tmp_path: Path, printed: Printed) -> None:
    many = [message(n, n, "step", arguments(n)) for n in range(300)]
    write_case(tmp_path / "a.case", with_entries(sample(), *many, evicted=0))
    text = printed("show", tmp_path / "a.case")
    assert "\n  ... 100 earlier entries: pass --all to see them\n  #100 step(100) " in text
    text = printed("show", tmp_path / "a.case", "--all")
    assert "\ntrainers[0]\n  #0 step(0) from 0.0\n  #1 step(1)" in text
    assert "\nparams[1]\n" in text


def test_concurrent_messages_are_distinguished(tmp_path: Path, printed: Printed) -> None:
    call = {"k": 4, "n": 1, "mesh": "params", "endpoint": "get", "ranks": list(range(9))}
    read = {"source": "environ", "key": "HOME", "value": None}
    entries = (
        message(0, 1, "a", arguments()),
        message(1, 2, "b", arguments()),
        Entry(2, 0, "call", call, arguments()),
        Entry(3, 0, "reply", {"k": 4, "rank": 8, "code": 0}),
        Entry(4, 0, "read", {"n": None, **read}),
        Entry(5, 0, "outcome", {"n": 1, "status": "cancelled"}),
    )
    write_case(tmp_path / "a.case", with_entries(sample(), *entries, evicted=0))
    assert printed("show", tmp_path / "a.case").endswith("""
  #1 a() from 0.0
  #2 b() from 0.0
    #1 calls params.get() on 9 ranks
      #1 rank 8 replied
    outside of messages: reads environ HOME: not set
    #1 was cancelled
""")


def test_json_output_has_the_fields_and_the_text(tmp_path: Path, printed: Printed) -> None:
    write_case(tmp_path / "a.case", sample())
    shown = json.loads(printed("show", tmp_path / "a.case", "--json"))
    assert shown["reason"] == "trainers[0] failed: ValueError: bad"
    assert shown["environ"] == ["MESH_SEED"]
    failed, other = shown["actors"]
    assert failed["entries"][3]["fields"]["endpoint"] == "step"
    assert failed["entries"][3]["text"].startswith("#2 step((1, 2), <bytes, 75 KiB>")
    assert "entries" not in other


def test_a_case_without_actors_is_shown(tmp_path: Path, printed: Printed) -> None:
    write_case(tmp_path / "a.case", sample(actors=(), failed=None))
    assert printed("show", tmp_path / "a.case").endswith("\nactors\n")


def test_terminal_control_characters_are_escaped(tmp_path: Path, printed: Printed) -> None:
    bad = "\x1b[2J\r\n\x9b\u202e\udc80"
    case = sample(
        bad,
        reason=bad,
        versions={bad: bad},
        environ={bad: bad},
        modules={bad: {"file": bad}},
    )
    actors = [
        actor._replace(
            mesh=bad,
            class_name=bad,
            proc=bad,
            host=bad,
            entries=tuple(
                entry._replace(
                    fields={
                        name: bad if isinstance(one, str) and name in _FREE else one
                        for name, one in entry.fields.items()
                    }
                )
                for entry in actor.entries
            ),
        )
        for actor in case.actors
    ]
    for name in ("a.case", "\x1b[2Jb.case"):
        write_case(tmp_path / name, case._replace(actors=tuple(actors)))
    (tmp_path / "\x1b[2Jc.case").write_bytes(b"damaged")
    path = tmp_path / "a.case"
    for words in (
        ["show", path, "--all"],
        ["show", path, "--json"],
        ["list", tmp_path],
        ["diff", path, tmp_path / "\x1b[2Jb.case"],
    ):
        text = printed(*words)
        assert text.replace("\n", "").isprintable()
        assert "\\x1b[2J" in text or "\\u001b[2J" in text
    for words in (["show", path, "--actor", bad], ["show", tmp_path / "\x1b[2Jc.case"]):
        assert printed.error(*words)[:-1].isprintable()


_FREE = {"mesh", "class", "endpoint", "from", "error", "key"}


class TestList:
    def test_cases_are_listed_by_time(self, tmp_path: Path, printed: Printed) -> None:
        write_case(tmp_path / "b.case", sample())
        later = sample(created_ns=1_800_000_000_000_000_000, reason="a" * 100)
        write_case(tmp_path / "a.case", later)
        (tmp_path / "notes.txt").write_text("no case")
        header, first, second = printed("list", tmp_path).splitlines()
        assert header.split() == ["FILE", "TIME", "REASON", "ACTORS", "SIZE"]
        assert first.startswith("b.case  2023-11-14 22:13:20 UTC  trainers[0] failed: Value")
        assert "  trainers[0], params[1]  " in first
        assert second.startswith(f"a.case  2027-01-15 08:00:00 UTC  {'a' * 57}...  ")
        assert header.index("SIZE") == second.rindex("  ") + 2

    def test_a_damaged_file_does_not_hide_other_cases(
        self, tmp_path: Path, printed: Printed
    ) -> None:
        write_case(tmp_path / "a.case", sample())
        (tmp_path / "b.case").write_bytes(b"damaged")
        (tmp_path / "c.case").mkdir()
        text = printed("list", tmp_path)
        assert "cannot read the case" in text
        assert "trainers[0] failed" in text
        rows = {row["file"]: row for row in json.loads(printed("list", tmp_path, "--json"))}
        assert rows["a.case"]["actors"] == ["trainers[0]", "params[1]"]
        assert "it has only 7 bytes" in rows["b.case"]["error"]
        assert "not a regular file" in rows["c.case"]["error"]

    def test_an_empty_folder_has_no_cases_and_a_missing_folder_is_an_error(
        self, tmp_path: Path, printed: Printed
    ) -> None:
        assert printed("list", tmp_path) == f"no cases in {tmp_path}\n"
        assert printed("list", tmp_path, "--json") == "[]\n"
        error = printed.error("list", tmp_path / "none")
        assert error.startswith(f"mesh case: cannot list the folder {tmp_path / 'none'}: No such")


class TestDiff:
    def diff(self, printed: Printed, folder: Path, one: Case, another: Case) -> str:
        write_case(folder / "a.case", one)
        write_case(folder / "b.case", another)
        text = printed("diff", folder / "a.case", folder / "b.case")
        return text.replace(f"{folder}/", "").partition("entries\nb.case: ")[2].partition("\n")[2]

    def test_equal_cases_have_no_difference(self, tmp_path: Path, printed: Printed) -> None:
        assert self.diff(printed, tmp_path, sample(), sample()) == "no difference in 2 messages\n"

    def test_the_first_message_that_differs_is_shown(
        self, tmp_path: Path, printed: Printed
    ) -> None:
        assert self.diff(printed, tmp_path, sample(1), sample([2])) == (
            "first difference, in message #2:\n"
            "  a.case: step(1, <bytes, 75 KiB>, None, scale=0.5)\n"
            "  b.case: step([2], <bytes, 75 KiB>, None, scale=0.5)\n"
        )

    def test_large_values_that_look_alike_are_reported(
        self, tmp_path: Path, printed: Printed
    ) -> None:
        other = LARGE[:-1] + b"\0"
        assert self.diff(printed, tmp_path, sample(LARGE), sample(other)).endswith(
            "\n  (equal as text, but the encoded values differ)\n"
        )

    def test_versions_modules_and_environment_variables_are_compared(
        self, tmp_path: Path, printed: Printed
    ) -> None:
        module = {"file": "/src/train.py", "sha256": "cd" * 32}
        other = sample(
            versions={"python": "3.12.1", "torch": "2.14"},
            modules={"train": module},
            environ={"MESH_SEED": "8"},
        )
        assert self.diff(printed, tmp_path, sample(), other) == (
            "version of numpy: 2.4.6 | none\n"
            "version of python: 3.11.7 | 3.12.1\n"
            "version of torch: none | 2.14\n"
            f"SHA-256 of module train: {'ab' * 32} | {'cd' * 32}\n"
            "different environment variables: MESH_SEED\n"
            "no difference in 2 messages\n"
        )

    @pytest.mark.parametrize(
        ("at", "fields", "payloads", "expected"),
        [
            (5, {"code": 0}, value(0), ("reply of rank 1 [1.5, {2, 3}]", "reply of rank 1 0")),
            (8, {"value": 7}, (), ("read of random: [7, 1180591620717411303424]", "random: 7")),
            (9, {"status": "value"}, value(1), ("raised ValueError: bad", "outcome value")),
            (2, {}, value(3), ("outcome value None", "outcome value 3")),
        ],
    )
    def test_entries_within_a_message_are_compared(
        self,
        tmp_path: Path,
        printed: Printed,
        at: int,
        fields: dict[str, Any],
        payloads: tuple[bytes, ...],
        expected: tuple[str, str],
    ) -> None:
        entries = list(sample().actors[0].entries)
        entries[at] = entries[at]._replace(
            fields={**entries[at].fields, **fields}, payloads=payloads
        )
        text = self.diff(printed, tmp_path, sample(), with_entries(sample(), *entries))
        first, second = text.splitlines()[1:]
        assert expected[0] in first
        assert expected[1] in second

    def test_times_and_the_order_of_replies_are_not_compared(
        self, tmp_path: Path, printed: Printed
    ) -> None:
        entries = list(sample().actors[0].entries)
        entries[5], entries[6] = (
            entries[6]._replace(number=entries[5].number),
            entries[5]._replace(number=entries[6].number),
        )
        entries[7] = entries[7]._replace(fields={**entries[7].fields, "value": 2.5}, time_ns=7)
        text = self.diff(printed, tmp_path, sample(), with_entries(sample(), *entries))
        assert text == "no difference in 2 messages\n"

    def test_a_shorter_recording_differs_where_it_ends(
        self, tmp_path: Path, printed: Printed
    ) -> None:
        entries = [message(n, n, "step", arguments(n)) for n in range(3)]
        one = with_entries(sample(), *entries)
        text = self.diff(printed, tmp_path, one, with_entries(sample(), *entries[:2]))
        assert text.endswith("in message #2:\n  a.case: step(2)\n  b.case: nothing\n")

    def test_messages_that_were_evicted_on_one_side_are_skipped(
        self, tmp_path: Path, printed: Printed
    ) -> None:
        entries = [message(n, n, "step", arguments(n)) for n in range(4)]
        one = with_entries(sample(), *entries, evicted=0)
        another = with_entries(sample(), *entries[2:], evicted=2)
        assert self.diff(printed, tmp_path, one, another) == "no difference in 2 messages\n"

    def test_an_omitted_payload_is_not_a_difference(self, tmp_path: Path, printed: Printed) -> None:
        whole = arguments(1)
        one = with_entries(sample(), message(0, 0, "step", whole))
        another = with_entries(sample(), message(0, 0, "step", (Omitted(len(whole[0]), "budget"),)))
        assert self.diff(printed, tmp_path, one, another) == "no difference in 1 message\n"

    def test_a_class_of_the_main_script_is_not_a_difference(
        self, tmp_path: Path, printed: Printed
    ) -> None:
        class Local:
            pass

        one = with_entries(sample(), message(0, 0, "step", arguments(Local)))

        class Local:  # type: ignore[no-redef]
            pass

        another = with_entries(sample(), message(0, 0, "step", arguments(Local)))
        assert one != another
        assert self.diff(printed, tmp_path, one, another) == "no difference in 1 message\n"

    def test_cases_of_different_classes_are_refused(self, tmp_path: Path, printed: Printed) -> None:
        write_case(tmp_path / "a.case", sample())
        write_case(tmp_path / "b.case", sample(failed=1))
        write_case(tmp_path / "c.case", sample(failed=None, actors=()))
        error = printed.error("diff", tmp_path / "a.case", tmp_path / "b.case")
        assert "different classes, train:Trainer and train:Params: pass cases of one" in error
        assert "has no actors" in printed.error("diff", tmp_path / "a.case", tmp_path / "c.case")


class TestCommand:
    def run(self, *words: str, **settings: Any) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "mesh_core.case", *words]
        return subprocess.run(command, capture_output=True, timeout=60, check=False, **settings)

    def test_the_command_runs_by_module_name_and_prints_in_any_encoding(
        self, tmp_path: Path
    ) -> None:
        write_case(tmp_path / "a.case", sample(reason="größer"))
        run = self.run(
            "show", str(tmp_path / "a.case"), env={**os.environ, "PYTHONIOENCODING": "ascii"}
        )
        assert (run.returncode, run.stderr) == (0, b"")
        assert run.stdout.startswith(b"reason       gr\\xf6\\xdfer\n")

    def test_an_error_prints_one_line_and_exits_with_status_2(self, tmp_path: Path) -> None:
        (tmp_path / "a.case").write_bytes(b"damaged")
        run = self.run("show", str(tmp_path / "a.case"))
        assert (run.returncode, run.stdout) == (2, b"")
        assert run.stderr.startswith(b"mesh case: cannot read the case ")
        assert run.stderr.count(b"\n") == 1

    def test_a_closed_output_pipe_is_not_an_error(self, tmp_path: Path) -> None:
        many = [message(n, n, "step", arguments("x" * 90)) for n in range(5_000)]
        write_case(tmp_path / "a.case", with_entries(sample(), *many))
        command = [sys.executable, "-m", "mesh_core.case", "show", "--all", "a.case"]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0


class Mutator:
    """Makes files that are almost cases, and cases with hostile payloads, from a seed."""

    def __init__(self, seed: int, folder: Path, marker: Path) -> None:
        self.random = random.Random(seed)
        self._folder = folder
        self._marker = marker

    def write(self, path: Path) -> None:
        content = members(self._folder, self.case())
        for _ in range(self.random.choice([0, 0, 1, 1, 2, 5])):
            content = self.change_member(content)
        items = list(content.items())
        if self.random.random() < 0.1:
            items.insert(self.random.randrange(len(items) + 1), (self.name(items), self.noise()))
        pack(path, items, self.random.choice([0, 8, 8]))
        if self.random.random() < 0.25:
            path.write_bytes(self.change_bytes(path.read_bytes()))

    def case(self) -> Case:
        entries = [
            entry._replace(payloads=self.payloads(entry)) if entry.payloads else entry
            for entry in sample(LARGE, MakesMarker(self._marker)).actors[0].entries
        ]
        return with_entries(sample(), *entries)

    def payloads(self, entry: Entry) -> tuple[bytes | Omitted, ...]:
        """Return payloads that are hostile, damaged, exchanged or omitted."""
        found: list[bytes | Omitted] = list(entry.payloads)
        at = self.random.randrange(len(found))
        one = found[at]
        match self.random.randrange(7):
            case 0:
                found[at] = hostile_payload(self._marker)
            case 1 if isinstance(one, bytes):
                found[at] = self.change_bytes(one)
            case 2:
                found[at] = self.noise()
            case 3:
                self.random.shuffle(found)
            case 4:
                found[at] = Omitted(self.random.choice([0, 1, 1 << 40]), "redacted")
            case 5:
                found[at] = pickle.dumps(MakesMarker(self._marker), self.random.randrange(6))
        return tuple(found)

    def change_member(self, content: dict[str, bytes]) -> dict[str, bytes]:
        name = self.random.choice(list(content) or ["case.json"])
        content.setdefault(name, b"{}")
        match self.random.randrange(6):
            case 0:
                return {one: data for one, data in content.items() if one != name}
            case 1:
                return {**content, name: self.change_bytes(content[name])}
            case 2 if not name.startswith("payloads/"):
                return {**content, name: self.change_json(content[name])}
            case 3:
                data = self.change_bytes(content[name])
                return {**content, f"payloads/{hashlib.sha256(data).hexdigest()}": data}
        log = content.get("actors/0.jsonl", b"")
        return {**content, "actors/0.jsonl": self.change_json(log)}

    def change_json(self, text: bytes) -> bytes:
        """Change one value of the JSON in one line."""
        lines = text.split(b"\n")
        at = self.random.randrange(len(lines))
        try:
            value = json.loads(lines[at])
        except ValueError:
            return self.change_bytes(text)
        place: Any = value
        while isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = self.random.choice(list(keys))
            if not isinstance(place[key], dict | list) or self.random.random() < 0.3:
                place[key] = self.junk()
                break
            place = place[key]
        lines[at] = json.dumps(value).encode()
        return b"\n".join(lines)

    def junk(self) -> Any:
        numbers = [True, -1, 0, 2**63, 10**90, 10**200, 1.5, 1e308, float("nan")]
        texts = ["", "\x1b[2J", "\ud800", "x" * 5_000, "0" * 64]
        others = [None, [], {}, [[[[]]]], {"base64": "gAUu"}, [1, "a"]]
        return self.random.choice([*numbers, *texts, *others])

    def name(self, items: list[tuple[str, bytes]]) -> str:
        known = [name for name, _ in items]
        return self.random.choice([*known[:1], "../x", "payloads/x", "actors/1.jsonl", "\x1b[2J"])

    def noise(self) -> bytes:
        opcodes = b"(.012FGIJKLMNRTX]abceghjloqrstu}\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8c"
        opcodes += b"\x93\x94\x95\x97\x98"
        parts = [b"cos\nsystem\n", b"\x8c\x02os", b"K\x01", b"\x8e" + b"\xff" * 8, b"\x00"]
        count = self.random.randrange(40)
        return b"".join(
            self.random.choice(parts)
            if self.random.random() < 0.2
            else bytes([self.random.choice(opcodes)])
            for _ in range(count)
        )

    def change_bytes(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.random.choice([1, 1, 2, 8])):
            at = self.random.randrange(len(changed) + 1)
            match self.random.randrange(4):
                case 0:
                    changed[at : at + 1] = self.random.randbytes(1)
                case 1:
                    del changed[at : at + self.random.randrange(40)]
                case 2:
                    changed[at:at] = self.random.randbytes(self.random.randrange(9))
                case 3:
                    changed[at:] = b"" if self.random.random() < 0.2 else changed[at:]
        return bytes(changed)


def assert_commands_only_print(
    seed: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> list[int]:
    """Run every command on a file from a seed; return the exit statuses."""
    listed = folder / "listed"
    listed.mkdir(exist_ok=True)
    marker = folder / "marker"
    path = listed / "hostile.case"
    Mutator(seed, folder, marker).write(path)
    if not (folder / "valid.case").exists():
        write_case(folder / "valid.case", sample())
    statuses = []
    for words in (
        ["list", listed],
        ["show", "--all", path],
        ["show", "--json", path],
        ["diff", path, folder / "valid.case"],
    ):
        status = main(list(map(str, words)))
        out, err = capsys.readouterr()
        statuses.append(status)
        assert out.replace("\n", "").isprintable(), seed
        if status == 0:
            assert err == "", seed
        else:
            assert status == 2, seed
            assert out == "", seed
            assert err.count("\n") == 1, seed
            assert err.startswith("mesh case: "), seed
            assert err[:-1].isprintable(), seed
        assert not marker.exists(), seed
    return statuses


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk, which takes longer than the commands."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("start", range(0, 300, SEEDS_PER_TEST))
def test_hostile_files_cannot_make_a_command_do_more_than_print(
    start: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statuses = [
        status
        for seed in range(start, start + SEEDS_PER_TEST)
        for status in assert_commands_only_print(seed, tmp_path, capsys)
    ]
    # Otherwise, the files would not reach the code behind the first check, or would all be valid.
    assert statuses.count(0) > 150
    assert statuses.count(2) > 75


@pytest.mark.slow
@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("start", range(1_000, 11_000, SEEDS_PER_TEST))
def test_ten_thousand_hostile_files_cannot_make_a_command_do_more_than_print(
    start: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(start, start + SEEDS_PER_TEST):
        assert_commands_only_print(seed, tmp_path, capsys)


def test_the_hostile_payloads_are_hostile(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    pickle.loads(hostile_payload(marker))[0][0].close()
    assert marker.exists()
