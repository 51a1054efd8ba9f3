"""Values by the position of their origin."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import cloudpickle
import pytest

from mesh_core._shapes.shape import Extent, Point, Region, Shape, Slice
from mesh_core._shapes.shape_errors import MeshIndexError, SelectorError, ShapeError
from mesh_core._shapes.value_mesh import ValueMesh

EXTENT = Extent(["hosts", "gpus"], [2, 3])
LETTERS = ValueMesh(EXTENT, "abcdef")


def test_values_are_found_by_coordinates_rank_and_point() -> None:
    assert LETTERS.item(hosts=1, gpus=0) == "d"
    assert LETTERS.item(hosts=-1, gpus=-1) == "f"
    assert (LETTERS.get(4), LETTERS[4], LETTERS[-1]) == ("e", "e", "f")
    assert LETTERS[Point(3, EXTENT)] == "d"
    assert list(LETTERS.values()) == list("abcdef")
    assert len(LETTERS) == 6


def test_iterates_over_points_and_values() -> None:
    pairs = list(LETTERS)
    assert pairs == list(LETTERS.items())
    assert pairs[4] == (Point(4, EXTENT), "e")
    assert dict(pairs[4][0]) == {"hosts": 1, "gpus": 1}


def test_points_of_a_slice_are_numbered_from_0() -> None:
    part = LETTERS.slice(gpus=slice(None, None, -2))
    extent = Extent(["hosts", "gpus"], [2, 2])
    letters = ["c", "a", "f", "d"]
    assert list(part) == [(Point(rank, extent), value) for rank, value in enumerate(letters)]
    assert part.get(3) == "d"
    assert part.item(hosts=0, gpus=1) == "a"
    assert list(part.slice(hosts=1).values()) == ["f", "d"]
    assert part.slice(hosts=1, gpus=0).item() == "f"


def test_a_flat_slice_is_a_value_mesh() -> None:
    assert list(LETTERS[1:4].values()) == ["b", "c", "d"]
    assert LETTERS[[5, 0]].sizes == {"rank": 2}
    assert list(LETTERS.flatten("all").split(all=("a", "b"), b=2).slice(b=0).values()) == list(
        "ace"
    )


@pytest.mark.parametrize(
    "shape",
    [
        Region.row_major(["gpus"], [4]).select(gpus=[3, 1]),
        Shape(["gpus"], Slice(offset=3, sizes=[2], strides=[-2])),
        Extent(["gpus"], [2]),
    ],
)
def test_points_are_numbered_from_0_for_every_kind_of_shape(shape: Region | Shape | Extent) -> None:
    values = ValueMesh(shape, ["x", "y"])
    assert [(point.rank, value) for point, value in values] == [(0, "x"), (1, "y")]
    assert values.extent == {"gpus": 2}


@pytest.mark.parametrize(
    ("coordinates", "error", "message"),
    [
        ({"hosts": 0}, KeyError, "no coordinate for gpus: give one for each dimension"),
        ({"hosts": 0, "gpus": 0, "x": 0}, KeyError, 'no dimension "x"'),
        ({"hosts": 2, "gpus": 0}, IndexError, "index 2 is out of range"),
        ({"hosts": 0, "gpus": slice(1)}, SelectorError, "several values are selected along gpus"),
    ],
)
def test_the_error_of_item_says_what_is_wrong(
    coordinates: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        LETTERS.item(**coordinates)
    assert message in str(raised.value)


def test_rank_out_of_range_is_a_value_error_and_an_index_error() -> None:
    for error in (ValueError, IndexError):
        with pytest.raises(error, match="index 6 is out of range"):
            LETTERS.get(6)


def test_each_position_must_have_a_value() -> None:
    with pytest.raises(ShapeError, match=r"5 values for the 6 places of {hosts: 2, gpus: 3}"):
        ValueMesh(EXTENT, "abcde")


def test_values_may_be_given_by_rank() -> None:
    pairs = [(rank, letter) for rank, letter in enumerate("abcdef")]
    assert ValueMesh.from_indexed(EXTENT, [(0, "z"), *reversed(pairs)]) == LETTERS
    with pytest.raises(ShapeError, match=r"2 ranks of {hosts: 2, gpus: 3} have no value: 1, 4"):
        ValueMesh.from_indexed(EXTENT, [pairs[rank] for rank in (0, 2, 3, 5)])
    with pytest.raises(MeshIndexError, match=r"rank 6 is not in .*: use 0 to 5"):
        ValueMesh.from_indexed(EXTENT, [*pairs, (6, "g")])


def test_values_are_decoded_once_on_first_access() -> None:
    decoded: list[str] = []

    def decode(raw: str) -> list[str]:
        decoded.append(raw)
        return [raw]

    values = ValueMesh(EXTENT, "abcdef", decode)
    assert len(values) == 6
    assert decoded == []
    part = values.slice(hosts=1)
    assert part.get(0) is values.get(3)
    assert decoded == ["d"]
    assert list(values.values()) == [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]
    assert decoded == ["d", "a", "b", "c", "e", "f"]


def test_a_value_that_cannot_be_decoded_does_not_affect_the_others() -> None:
    values = ValueMesh(EXTENT, "012x45", int)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            values.get(3)
    assert values.get(4) == 4


def test_all_threads_get_the_same_value() -> None:
    barrier = Barrier(8, timeout=60)

    def decode(raw: object) -> object:
        return [raw]

    values = ValueMesh(Extent(["n"], [200]), range(200), decode)
    seen: list[list[object]] = []

    def look() -> None:
        barrier.wait()
        seen.append(list(values.values()))

    threads = [Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    for rank in range(200):
        assert len({id(values_of_one[rank]) for values_of_one in seen}) == 1


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_pickled_slice_contains_only_its_decoded_values(dumps: Callable[[object], bytes]) -> None:
    part = ValueMesh(EXTENT, "123456", lambda raw: int(raw)).slice(hosts=1)
    copy = pickle.loads(dumps(part))
    assert copy == part
    assert copy == ValueMesh(Extent(["gpus"], [3]), [4, 5, 6])
    assert list(copy.slice(gpus=[2, 0]).values()) == [6, 4]


def test_meshes_with_equal_extents_and_values_are_equal() -> None:
    assert (
        ValueMesh(EXTENT, "123456", dict(zip("123456", "abcdef", strict=True)).__getitem__)
        == LETTERS
    )
    assert ValueMesh(Extent(["gpus", "hosts"], [2, 3]), "abcdef") != LETTERS
    assert ValueMesh(EXTENT, "abcdeg") != LETTERS
    assert list("abcdef") != LETTERS
    assert hash(LETTERS) == hash(ValueMesh(EXTENT, "abcdef"))
    with pytest.raises(TypeError):
        hash(ValueMesh(Extent([], []), [[]]))


def test_repr_shows_dimensions_and_first_values() -> None:
    assert repr(LETTERS.slice(hosts=0)) == "ValueMesh({gpus: 3}, ['a', 'b', 'c'])"
    many = ValueMesh(Extent(["n"], [100]), range(100))
    assert repr(many) == "ValueMesh({n: 100}, [0, 1, 2, 3, 4, 5, 6, 7, ... 92 more])"
