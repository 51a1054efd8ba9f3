"""The file of a case: complete or absent, private, and refused in words if it is damaged."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import stat
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from case_samples import (
    LARGE,
    hostile_payload,
    members,
    members_of,
    message,
    pack,
    sample,
    with_json,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_core import MeshError
from mesh_core._cases import case_file, container
from mesh_core._cases.case import Case, Entry, Omitted, RecordedActor
from mesh_core._cases.case_file import read_case, read_summary, write_case
from mesh_core._cases.errors import CaseError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Members = dict[str, bytes]

GOLDEN = Path(__file__).parent / "golden" / "format_1.case"
LOG = "actors/0.jsonl"


def counts(below: int = 2**63) -> st.SearchStrategy[int]:
    return st.integers(0, below - 1)


texts = st.text(max_size=20)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
payloads = (
    st.binary(max_size=2_000)
    | st.builds(Omitted, counts(), st.sampled_from(["budget", "redacted"]))
    # Long enough to be a member, and equal in several entries.
    | st.sampled_from([LARGE, b"\0" * 3_000])
)
fields = {
    "begin": st.fixed_dictionaries(
        {
            "mesh": texts,
            "rank": counts(),
            "extent": st.dictionaries(texts, counts(), max_size=3),
            "class": texts,
        }
    ),
    "message": st.fixed_dictionaries(
        {
            "n": counts(),
            "endpoint": texts,
            "rank": counts(),
            "meta": st.sampled_from(["", "AAE=", "//8A"]),
            "from": texts,
            "replies": st.booleans(),
        }
    ),
    "outcome": st.fixed_dictionaries(
        {"n": counts(), "status": st.sampled_from(["value", "raised", "cancelled"])},
        optional={"error": texts | st.none()},
    ),
    "call": st.fixed_dictionaries(
        {
            "k": counts(),
            "n": counts() | st.none(),
            "mesh": texts,
            "endpoint": texts,
            "ranks": st.lists(counts(), max_size=4),
        }
    ),
    "reply": st.fixed_dictionaries({"k": counts(), "rank": counts(), "code": counts()}),
    "read": st.fixed_dictionaries(
        {
            "n": counts() | st.none(),
            "source": st.sampled_from(["time", "random", "environ"]),
            "key": texts | st.none(),
            "value": plain,
        }
    ),
    # A field that this version does not know is kept.
    "failed": st.fixed_dictionaries({"error": texts}, optional={"later": plain}),
}


@st.composite
def made_entries(draw: st.DrawFn) -> tuple[Entry, ...]:
    kinds = draw(st.lists(st.sampled_from(sorted(fields)), max_size=5))
    numbers = sorted(draw(st.sets(counts(), min_size=len(kinds), max_size=len(kinds))))
    return tuple(
        Entry(
            number,
            draw(counts()),
            kind,
            draw(fields[kind]),
            () if kind == "read" else tuple(draw(st.lists(payloads, min_size=1, max_size=3))),
        )
        for number, kind in zip(numbers, kinds, strict=True)
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    one = st.builds(
        RecordedActor, texts, counts(), texts, texts, texts, counts(), counts(), made_entries()
    )
    actors = tuple(draw(st.lists(one, max_size=3)))
    return Case(
        job=draw(st.binary(min_size=16, max_size=16)),
        created_ns=draw(counts()),
        reason=draw(texts),
        failed=draw(st.none() | counts(len(actors))) if actors else None,
        versions=draw(st.dictionaries(texts, texts, max_size=3)),
        modules=draw(
            st.dictionaries(
                texts,
                st.fixed_dictionaries(
                    {"file": texts, "sha256": st.just("0" * 64), "source": texts}
                ),
                max_size=2,
            )
        ),
        environ=draw(st.dictionaries(texts, texts, max_size=3)),
        actors=actors,
    )


@settings(max_examples=40)
@given(case=cases())
def test_a_case_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.case"
    write_case(path, case)
    assert read_case(path) == case


def test_the_summary_has_everything_but_the_entries(tmp_path: Path) -> None:
    write_case(tmp_path / "a.case", sample())
    summary = read_summary(tmp_path / "a.case")
    without = tuple(actor._replace(entries=()) for actor in sample().actors)
    assert summary.case == sample(actors=without)
    assert summary.entry_counts == (11, 0)
    assert summary.file_len == (tmp_path / "a.case").stat().st_size


def test_the_summary_needs_no_log(tmp_path: Path) -> None:
    content = members(tmp_path, sample())
    pack(tmp_path / "a.case", [("case.json", content["case.json"])])
    assert read_summary(tmp_path / "a.case").case.reason == sample().reason


def test_equal_payloads_are_stored_once(tmp_path: Path) -> None:
    many = tuple(message(n, n, "step", (LARGE, LARGE)) for n in range(5))
    actor = sample().actors[0]._replace(entries=many)
    write_case(tmp_path / "a.case", sample(actors=(actor, actor)))
    names = [name for name, _ in members_of(tmp_path / "a.case")]
    digest = hashlib.sha256(LARGE).hexdigest()
    logs = ["actors/0.jsonl", "actors/1.jsonl"]
    assert sorted(names) == [*logs, "case.json", f"payloads/{digest}"]


def test_incompressible_payloads_are_stored_uncompressed(tmp_path: Path) -> None:
    noise = random.Random(7).randbytes(100_000)
    actor = sample().actors[0]._replace(entries=(message(0, 1, "step", (LARGE, noise)),))
    write_case(tmp_path / "a.case", sample(actors=(actor,)))
    with zipfile.ZipFile(tmp_path / "a.case") as file:
        methods = {one.file_size: one.compress_type for one in file.infolist()}
    assert methods[len(noise)] == zipfile.ZIP_STORED
    assert methods[len(LARGE)] == zipfile.ZIP_DEFLATED
    assert read_case(tmp_path / "a.case").actors[0] == actor


def test_surrogates_in_environment_variables_are_kept(tmp_path: Path) -> None:
    case = sample(environ={"NAME": "\udcff"})
    write_case(tmp_path / "a.case", case)
    assert read_case(tmp_path / "a.case") == case


def test_the_golden_file_can_be_read() -> None:
    assert read_case(GOLDEN) == sample()


def test_the_golden_file_has_the_same_members_as_a_written_file(tmp_path: Path) -> None:
    # The compressed bytes depend on the version of zlib.
    write_case(tmp_path / "a.case", sample())
    written, golden = dict(members_of(tmp_path / "a.case")), dict(members_of(GOLDEN))
    manifests = [json.loads(one.pop("case.json")) for one in (written, golden)]
    assert written == golden
    assert {**manifests[0], "writer": ""} == {**manifests[1], "writer": ""}


def test_the_error_for_a_newer_format_names_the_version_to_install(tmp_path: Path) -> None:
    newer = {"format": 2, "writer": "9.8.7", "other": [1]}
    pack(tmp_path / "a.case", [("case.json", json.dumps(newer).encode())])
    with pytest.raises(CaseError, match=r"format 2.* reads format 1: install torchmesh-core 9.8.7"):
        read_summary(tmp_path / "a.case")


def test_only_the_owner_can_read_a_case(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_case(tmp_path / "a.case", sample())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.case").stat().st_mode) == 0o600


def test_an_existing_file_is_replaced_and_not_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.case"
    path.write_bytes(b"older")
    path.chmod(0o644)
    with path.open("rb") as older:
        write_case(path, sample())
        assert older.read() == b"older"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_case(path) == sample()


def test_a_symbolic_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"other")
    (tmp_path / "a.case").symlink_to(target)
    write_case(tmp_path / "a.case", sample())
    assert target.read_bytes() == b"other"


def test_a_failed_write_leaves_the_folder_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.case").write_bytes(b"older")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CaseError, match="No space left on device: choose another folder"):
        write_case(tmp_path / "a.case", sample())
    assert os.listdir(tmp_path) == ["a.case"]
    assert (tmp_path / "a.case").read_bytes() == b"older"


def test_the_error_names_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"none/a.case: No such file"):
        write_case(tmp_path / "none" / "a.case", sample())


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (Entry(0, 0, "failed", {"error": object()}), '"error" must be a string'),
        (Entry(0, 0, "failed", {"error": "", "x": {1}}), "JSON cannot express"),
        (Entry(0, 0, "failed", {"error": "", "x": float("nan")}), "JSON cannot express"),
        (Entry(0, 0, "failed", {"error": ""}, ("text",)), "a payload must be bytes"),  # type: ignore[arg-type]
        (Entry(0, 0, "other", {}), '"kind" must be one of begin'),
        (message(0, 1, "x", ()), "must have 1 to 1024 payloads"),
    ],
)
def test_an_entry_that_the_format_cannot_express_is_refused(
    tmp_path: Path, entry: Entry, problem: str
) -> None:
    actor = sample().actors[0]._replace(entries=(entry,))
    with pytest.raises(CaseError, match=r"cannot write the case .*, line 1: ") as raised:
        write_case(tmp_path / "a.case", sample(actors=(actor,)))
    assert problem in str(raised.value)
    assert os.listdir(tmp_path) == []


def test_the_writer_enforces_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_file, "CONTENT_LEN_MAX", 1_000)
    with pytest.raises(CaseError, match="more than 1000"):
        write_case(tmp_path / "a.case", sample())
    monkeypatch.setattr(case_file, "CONTENT_LEN_MAX", 1 << 20)
    monkeypatch.setattr(case_file, "MEMBERS_MAX", 3)
    with pytest.raises(CaseError, match="more than 3 members"):
        write_case(tmp_path / "a.case", sample())
    assert os.listdir(tmp_path) == []


def first_payload(content: Members) -> str:
    return next(name for name in content if name.startswith("payloads/"))


def in_log(**changes: Any) -> Callable[[Members], Members]:
    return lambda content: with_json(content, LOG, **changes)


def in_manifest(**changes: Any) -> Callable[[Members], Members]:
    return lambda content: with_json(content, "case.json", **changes)


def in_fields(**changes: Any) -> Callable[[Members], Members]:
    """Change fields of the first entry, of kind `begin`."""

    def change(content: Members) -> Members:
        first = json.loads(content[LOG].split(b"\n")[0])["fields"]
        return with_json(content, LOG, fields={**first, **changes})

    return change


def in_actor(**changes: Any) -> Callable[[Members], Members]:
    def change(content: Members) -> Members:
        first, *rest = json.loads(content["case.json"])["actors"]
        return with_json(content, "case.json", actors=[{**first, **changes}, *rest])

    return change


def raw(name: str, text: bytes) -> Callable[[Members], Members]:
    return lambda content: {**content, name: text}


DAMAGES: dict[str, tuple[Callable[[Members], Members], str]] = {
    "no manifest": (
        lambda content: {name: one for name, one in content.items() if name != "case.json"},
        "case.json: it is missing",
    ),
    "no log": (
        lambda content: {name: one for name, one in content.items() if name != LOG},
        f"{LOG}: it is missing",
    ),
    "no payload": (
        lambda content: {
            name: one for name, one in content.items() if not name.startswith("payloads/")
        },
        "line 4: payload '[0-9a-f]{64}' is missing",
    ),
    "wrong payload": (
        lambda content: {**content, first_payload(content): b"other"},
        "payloads/[0-9a-f]{64}: its SHA-256 differs",
    ),
    "unused payload": (raw(f"payloads/{'0' * 64}", b""), "members that no entry refers to"),
    "unused log": (raw("actors/7.jsonl", b""), "members that no entry refers to"),
    "not UTF-8": (raw("case.json", b'{"reason": "\xff"}'), "case.json: it is not UTF-8"),
    "not JSON": (raw("case.json", b"{,}"), r"case.json: it is not JSON \(.* at character 1\)"),
    "deep JSON": (raw("case.json", b"[" * 200_000), "case.json: values are nested"),
    "a deep value": (raw("case.json", b"[" * 40 + b"]" * 40), "case.json: values are nested"),
    "a huge integer": (raw("case.json", b'{"a": 1' + b"0" * 9_999 + b"}"), "of more than 100 dig"),
    "infinity": (raw("case.json", b'{"a": 1e999}'), "a number that is not finite"),
    "NaN": (raw("case.json", b'{"a": NaN}'), "contains NaN, which is not JSON"),
    "a name twice": (raw("case.json", b'{"a": 1, "a": 2}'), "object with a duplicate name"),
    "a list as manifest": (raw("case.json", b"[]"), "case.json: it must be an object"),
    "no format": (in_manifest(format=...), '"format" must be an integer from 1'),
    "format as text": (in_manifest(format="1"), '"format" must be an integer from 1'),
    "format true": (in_manifest(format=True), '"format" must be an integer from 1'),
    "no reason": (in_manifest(reason=...), '"reason" is missing: it must be a string'),
    "a reason that is no text": (in_manifest(reason=1), '"reason" must be a string'),
    "a short job": (in_manifest(job="00"), '"job" must be 32 hexadecimal digits'),
    "a job with spaces": (in_manifest(job="00 " * 10 + "00"), '"job" must be 32 hex'),
    "a time before 1970": (in_manifest(created_ns=-1), '"created_ns" must be an integer from 0'),
    "a time too late": (in_manifest(created_ns=2**63), '"created_ns" must be an integer from 0'),
    "a fraction of a time": (in_manifest(created_ns=1.5), '"created_ns" must be an integer'),
    "failed out of range": (in_manifest(failed=2), '"failed" must be null or the index'),
    "failed below range": (in_manifest(failed=-1), '"failed" must be null or the index'),
    "versions as list": (in_manifest(versions=[]), '"versions" must be an object of strings'),
    "environ of numbers": (in_manifest(environ={"A": 1}), '"environ" must be an object of str'),
    "modules of text": (in_manifest(modules={"m": "x"}), '"modules" must be an object of obj'),
    "a module without hash": (
        in_manifest(modules={"m": {"sha256": "x"}}),
        '"modules" must be an object of objects with a SHA-256',
    ),
    "actors as object": (in_manifest(actors={}), '"actors" must be a list'),
    "an actor as text": (in_manifest(actors=["x"]), "actor 0: it must be an object with mesh"),
    "too many actors": (
        lambda content: with_json(
            content, "case.json", actors=json.loads(content["case.json"])["actors"] * 3_000
        ),
        '"actors" must be a list of up to 4096 actors',
    ),
    "a rank as text": (in_actor(rank="0"), 'actor 0: "rank" must be an integer'),
    "a class as number": (in_actor(**{"class": 1}), 'actor 0: "class" must be a string'),
    "fewer entries": (in_actor(entries=10), f"{LOG}: it must have 10 complete lines"),
    "too many entries": (in_actor(entries=10**7), '"entries" must be an integer from 0'),
    "an incomplete line": (
        lambda content: {**content, LOG: content[LOG][:-5]},
        f"{LOG}: it must have 11 complete lines",
    ),
    "a line that is no JSON": (
        lambda content: {**content, LOG: b"x" + content[LOG]},
        f"{LOG}, line 1: it is not JSON",
    ),
    "a list as entry": (
        lambda content: {**content, LOG: b"[]" + content[LOG][content[LOG].index(b"\n") :]},
        f"{LOG}, line 1: it must be an object",
    ),
    "an entry without time": (in_log(time_ns=...), f'{LOG}, line 1: "time_ns" is missing'),
    "a number as text": (in_log(number="0"), f'{LOG}, line 1: "number" must be an integer'),
    "entries out of order": (in_log(number=99), f'{LOG}, line 2: "number" must be greater'),
    "an unknown kind": (in_log(kind="exec"), f'{LOG}, line 1: "kind" must be one of begin'),
    "a kind that is a list": (in_log(kind=[]), f'{LOG}, line 1: "kind" must be one of begin'),
    "fields as list": (in_log(fields=[]), f'{LOG}, line 1: "fields" must be an object'),
    "a missing field": (in_log(fields={}), f'{LOG}, line 1: "mesh" is missing in an entry of'),
    "an extent of texts": (in_fields(extent={"gpus": "2"}), '"extent" must be an object with'),
    "a true rank": (in_fields(rank=True), '"rank" must be an integer from 0'),
    "payloads as object": (in_log(payloads={}), '"payloads" must be a list'),
    "a path as payload": (in_log(payloads=["../case.json"]), "a payload must be a SHA-256"),
    "a hash with a path": (in_log(payloads=["../" + "a" * 61]), "line 1: payload .* is missing"),
    "bad base64": (in_log(payloads=[{"base64": "x"}]), "line 1: a payload is not base64"),
    "long base64": (in_log(payloads=[{"base64": "AAAA" * 999}]), "a payload must be a SHA-256"),
    "omitted for fun": (
        in_log(payloads=[{"length": 1, "reason": "fun"}]),
        "a length and the reason budget or redacted",
    ),
    "omitted below zero": (
        in_log(payloads=[{"length": -1, "reason": "budget"}]),
        "a length and the reason budget or redacted",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_the_error_names_the_damaged_part_and_the_problem(tmp_path: Path, name: str) -> None:
    damage, problem = DAMAGES[name]
    pack(tmp_path / "a.case", damage(members(tmp_path, sample())).items())
    with pytest.raises(CaseError, match=problem) as raised:
        read_case(tmp_path / "a.case")
    assert isinstance(raised.value, MeshError)
    assert str(raised.value).startswith(f"cannot read the case {tmp_path / 'a.case'}: ")
    assert str(raised.value).endswith(": copy it again from the machine that saved it")
    assert raised.value.part
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "actors/../case.json",
        "actors/00.jsonl",
        "actors/0.jsonl\n",
        "actors/99999.jsonl",
        "payloads/",
        f"payloads/{'A' * 64}",
        f"payloads/{'0' * 64}\0.txt",
        "case.json/",
        "CASE.JSON",
        "\x1b[2J",
        "",
    ],
)
def test_members_with_unknown_names_are_refused(tmp_path: Path, name: str) -> None:
    content = list(members(tmp_path, sample()).items())
    pack(tmp_path / "a.case", [*content, (name, b"")])
    with pytest.raises(CaseError, match="a case has no member '") as raised:
        read_summary(tmp_path / "a.case")
    assert str(raised.value).isprintable()


def test_a_member_that_appears_twice_is_refused(tmp_path: Path) -> None:
    content = list(members(tmp_path, sample()).items())
    pack(tmp_path / "a.case", [*content, content[0]])
    with pytest.raises(CaseError, match=r"the member 'case.json' appears twice"):
        read_summary(tmp_path / "a.case")


def test_an_unsupported_compression_method_is_refused(tmp_path: Path) -> None:
    pack(tmp_path / "a.case", members(tmp_path, sample()).items(), zipfile.ZIP_BZIP2)
    with pytest.raises(CaseError, match="uses compression method 12"):
        read_summary(tmp_path / "a.case")


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    path = patched(tmp_path, directory={8: b"\1\0"})
    with pytest.raises(CaseError, match=r"case.json: it is encrypted"):
        read_summary(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    write_case(tmp_path / "a.case", sample())
    whole = (tmp_path / "a.case").read_bytes()
    for length in {*range(0, len(whole), 97), len(whole) - 1}:
        (tmp_path / "b.case").write_bytes(whole[:length])
        with pytest.raises(CaseError, match="the file is damaged"):
            read_case(tmp_path / "b.case")


@pytest.mark.parametrize("whole", [b"x" + b"%b", b"%b" + b"x"])
def test_added_bytes_are_refused(tmp_path: Path, whole: bytes) -> None:
    write_case(tmp_path / "a.case", sample())
    (tmp_path / "b.case").write_bytes(whole % (tmp_path / "a.case").read_bytes())
    with pytest.raises(CaseError, match=r"the file: (bytes|the end)"):
        read_case(tmp_path / "b.case")


def test_a_member_with_a_changed_byte_is_refused(tmp_path: Path) -> None:
    content = members(tmp_path, sample())
    pack(tmp_path / "a.case", content.items(), zipfile.ZIP_STORED)
    whole = (tmp_path / "a.case").read_bytes()
    (tmp_path / "a.case").write_bytes(whole.replace(b"trainers[0] failed", b"trainers[1] failed"))
    with pytest.raises(CaseError, match=r"case.json: it cannot be decompressed \(Bad CRC-32"):
        read_summary(tmp_path / "a.case")


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_a_path_that_is_not_a_regular_file_is_refused_without_blocking(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "a.case"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(CaseError, match=r"No such file|it is not a regular file: pass the"):
        read_case(path)


def test_the_declared_lengths_are_limited(tmp_path: Path) -> None:
    path = patched(tmp_path, directory={24: struct.pack("<L", container.CONTENT_LEN_MAX + 1)})
    with pytest.raises(CaseError, match=r"its members have .* bytes, more than"):
        read_summary(path)


def test_a_member_that_is_longer_than_declared_is_refused(tmp_path: Path) -> None:
    path = patched(tmp_path, directory={24: struct.pack("<L", 10)})
    with pytest.raises(CaseError, match=r"case.json: (it|Bad)"):
        read_summary(path)


def test_a_member_that_is_shorter_than_declared_is_refused(tmp_path: Path) -> None:
    path = patched(tmp_path, directory={24: struct.pack("<L", 1 << 20)})
    with pytest.raises(CaseError, match=r"case.json: it is shorter than it declares"):
        read_summary(path)


def test_each_kind_of_member_has_its_own_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_case(tmp_path / "a.case", sample())
    monkeypatch.setattr(case_file, "MANIFEST_LEN_MAX", 100)
    with pytest.raises(CaseError, match=r"case.json: it has \d+ bytes, more than 100"):
        read_summary(tmp_path / "a.case")
    monkeypatch.setattr(case_file, "MANIFEST_LEN_MAX", 1 << 20)
    monkeypatch.setattr(case_file, "LOGS_LEN_MAX", 100)
    with pytest.raises(CaseError, match=r"actors/0.jsonl: it has \d+ bytes, more than 100"):
        read_case(tmp_path / "a.case")


def test_the_length_of_a_line_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_case(tmp_path / "a.case", sample())
    monkeypatch.setattr(case_file, "LINE_LEN_MAX", 100)
    with pytest.raises(CaseError, match=r"actors/0.jsonl, line 1: it has \d+ bytes, more than"):
        read_case(tmp_path / "a.case")
    with pytest.raises(CaseError, match=r"actors/0.jsonl, line 1: it has \d+ bytes, more than"):
        write_case(tmp_path / "a.case", sample())


def test_the_total_number_of_decompressed_bytes_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Members that overlap in the file may together have more than they declare.
    write_case(tmp_path / "a.case", sample())
    with container.Container(tmp_path / "a.case") as source:
        source._unread_len = 1_000
        with pytest.raises(ValueError, match="longer than it declares"):
            list(map(source.read, source.names))


@pytest.mark.parametrize(("at", "count"), [(10, 60_001), (12, 1 << 25)])
def test_a_directory_with_too_many_members_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, count: int
) -> None:
    write_case(tmp_path / "a.case", sample())
    whole = bytearray((tmp_path / "a.case").read_bytes())
    struct.pack_into("<H" if at == 10 else "<L", whole, len(whole) - 22 + at, count)
    (tmp_path / "a.case").write_bytes(whole)
    monkeypatch.setattr(container, "ZipFile", None)
    with pytest.raises(CaseError, match="it has more than 60000 members"):
        read_summary(tmp_path / "a.case")


def test_more_members_than_declared_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_case(tmp_path / "a.case", sample())
    whole = bytearray((tmp_path / "a.case").read_bytes())
    struct.pack_into("<H", whole, len(whole) - 12, 1)
    (tmp_path / "a.case").write_bytes(whole)
    monkeypatch.setattr(container, "MEMBERS_MAX", 2)
    with pytest.raises(CaseError, match="it has more than 2 members"):
        read_summary(tmp_path / "a.case")


def test_zip64_is_refused(tmp_path: Path) -> None:
    write_case(tmp_path / "a.case", sample())
    whole = (tmp_path / "a.case").read_bytes()
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1)
    (tmp_path / "a.case").write_bytes(whole[:-22] + locator + whole[-22:])
    with pytest.raises(CaseError, match="it uses ZIP64"):
        read_summary(tmp_path / "a.case")


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "a.case", "wb") as file:
        file.truncate(container.FILE_LEN_MAX + 1)
    with pytest.raises(CaseError, match=r"the file: it has \d+ bytes, more than"):
        read_summary(tmp_path / "a.case")


def test_nothing_in_a_case_is_unpickled(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hostile = hostile_payload(marker)
    actor = sample().actors[0]._replace(entries=(message(0, 1, "step", (hostile, hostile)),))
    write_case(tmp_path / "a.case", sample(actors=(actor,), failed=0))
    assert read_case(tmp_path / "a.case").actors[0].entries[0].payloads == (hostile, hostile)
    assert not marker.exists()


def patched(folder: Path, directory: dict[int, bytes]) -> Path:
    """Write a case, and change the entry of its first member in the central directory."""
    path = folder / "a.case"
    write_case(path, sample())
    whole = bytearray(path.read_bytes())
    start = whole.index(b"PK\x01\x02")
    for at, new in directory.items():
        whole[start + at : start + at + len(new)] = new
    path.write_bytes(whole)
    return path
