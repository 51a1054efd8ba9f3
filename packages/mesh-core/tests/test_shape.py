"""Extents, points, and the operations of all meshes on their dimensions."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import product
from typing import Any, TypeAlias

import cloudpickle
import pytest

from mesh_core._errors import MeshError
from mesh_core._shapes.shape import Extent, MemberMesh, Point, Region, Shape, Slice
from mesh_core._shapes.shape_errors import (
    MeshIndexError,
    SelectorError,
    ShapeError,
    SplitError,
    UnknownDim,
)

Dumps: TypeAlias = Callable[[object], bytes]


class Ranks(MemberMesh):
    """The minimal mesh."""

    def __init__(self, region: Region) -> None:
        self._region = region

    def _with_region(self, region: Region) -> Ranks:
        return Ranks(region)

    def ranks(self) -> list[int]:
        return self._region.ranks()


def mesh(**dims: int) -> Ranks:
    return Ranks(Extent(tuple(dims), tuple(dims.values())).region)


HOSTS = mesh(hosts=2, gpus=4)


class TestExtent:
    def test_maps_labels_to_sizes_in_order(self) -> None:
        extent = Extent(["hosts", "gpus"], [2, 4])
        assert list(extent.items()) == [("hosts", 2), ("gpus", 4)]
        assert extent.labels == ("hosts", "gpus")
        assert extent.sizes == (2, 4)
        assert extent.nelements == 8
        assert extent == {"hosts": 2, "gpus": 4}
        assert str(extent) == "{hosts: 2, gpus: 4}"

    def test_an_extent_without_dimensions_has_one_member(self) -> None:
        assert Extent([], []).nelements == 1
        assert str(Extent([], [])) == "{}"
        assert len(Extent([], []).region) == 1

    def test_order_matters_between_extents(self) -> None:
        assert Extent(["a", "b"], [2, 3]) == Extent(("a", "b"), (2, 3))
        assert Extent(["a", "b"], [2, 3]) != Extent(["b", "a"], [3, 2])
        assert len({Extent(["a"], [2]), Extent(("a",), (2,)), Extent(["b"], [2])}) == 2

    @pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
    def test_survives_pickling(self, dumps: Dumps) -> None:
        extent = Extent(["a", "b"], [2, 3])
        assert pickle.loads(dumps(extent)) == extent

    @pytest.mark.parametrize(
        ("labels", "sizes", "message"),
        [
            (["a"], [1, 2], "1 labels for 2 sizes: give one size for each label"),
            (["a", "a"], [1, 2], "a label occurs twice in ('a', 'a'): rename one"),
            (["a"], [0], "dimension 'a' has size 0: give each dimension at least one member"),
            (["a", "b"], [-1, -2], "dimension 'a' has size -1: give each dimension at least one"),
        ],
    )
    def test_refuses_invalid_labels_and_sizes(
        self, labels: list[str], sizes: list[int], message: str
    ) -> None:
        with pytest.raises(ShapeError) as raised:
            Extent(labels, sizes)
        assert message in str(raised.value)

    def test_the_error_for_an_unknown_dimension_lists_the_dimensions(self) -> None:
        with pytest.raises(KeyError) as raised:
            Extent(["a", "b"], [2, 3])["c"]
        assert str(raised.value) == "no dimension 'c': use one of a, b"
        assert "c" not in Extent(["a"], [2])


class TestPoint:
    def test_maps_labels_to_coordinates(self) -> None:
        extent = Extent(["a", "b", "c"], [2, 3, 4])
        for rank, coordinates in enumerate(product(range(2), range(3), range(4))):
            assert tuple(Point(rank, extent).values()) == coordinates

    def test_has_a_rank_and_an_extent(self) -> None:
        extent = Extent(["a", "b"], [2, 3])
        point = Point(5, extent)
        assert (point.rank, point.extent, point.size("b"), point.size()) == (5, extent, 3, 6)
        assert point == {"a": 1, "b": 2}
        assert str(point) == "{'a': 1/2, 'b': 2/3}"
        assert pickle.loads(pickle.dumps(point)) == point
        assert len({point, Point(5, extent), Point(4, extent)}) == 2

    @pytest.mark.parametrize("rank", [-1, 6])
    def test_refuses_a_rank_outside_its_extent(self, rank: int) -> None:
        with pytest.raises(ValueError, match=f"rank {rank} is not in {{a: 6}}: use 0 to 5"):
            Point(rank, Extent(["a"], [6]))

    @pytest.mark.parametrize("error", [KeyError, ValueError, TypeError, MeshError])
    def test_the_error_for_an_unknown_label_has_all_expected_types(
        self, error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            Point(0, Extent(["a"], [6]))["b"]


class TestSlicing:
    @pytest.mark.parametrize(
        ("dims", "ranks", "sizes"),
        [
            ({"gpus": 1}, [1, 5], {"hosts": 2}),
            ({"gpus": -1}, [3, 7], {"hosts": 2}),
            ({"hosts": 1, "gpus": 0}, [4], {}),
            ({"gpus": slice(1, 3)}, [1, 2, 5, 6], {"hosts": 2, "gpus": 2}),
            ({"gpus": slice(-2, None)}, [2, 3, 6, 7], {"hosts": 2, "gpus": 2}),
            ({"gpus": slice(0, 99, 2)}, [0, 2, 4, 6], {"hosts": 2, "gpus": 2}),
            ({"gpus": slice(None, None, -1)}, [3, 2, 1, 0, 7, 6, 5, 4], {"hosts": 2, "gpus": 4}),
            ({"hosts": slice(None, None, -1), "gpus": slice(2, None, -2)}, [6, 4, 2, 0], None),
            ({"gpus": [3, 0, -2]}, [3, 0, 2, 7, 4, 6], {"hosts": 2, "gpus": 3}),
            ({"gpus": (1,)}, [1, 5], {"hosts": 2, "gpus": 1}),
            ({"gpus": range(0, 4, 3)}, [0, 3, 4, 7], {"hosts": 2, "gpus": 2}),
            ({}, list(range(8)), {"hosts": 2, "gpus": 4}),
        ],
    )
    def test_keeps_the_selected_members(
        self, dims: dict[str, Any], ranks: list[int], sizes: dict[str, int] | None
    ) -> None:
        part = HOSTS.slice(**dims)
        assert part.ranks() == ranks
        assert sizes is None or part.sizes == sizes

    def test_slices_behave_like_list_slices(self) -> None:
        four = mesh(gpus=4)
        bounds = [None, *range(-6, 7)]
        for start, stop, step in product(bounds, bounds, [None, -5, -2, -1, 1, 2, 5]):
            part = slice(start, stop, step)
            expected = [0, 1, 2, 3][part]
            if expected:
                assert four.slice(gpus=part).ranks() == expected
            else:
                with pytest.raises(ShapeError, match="is empty"):
                    four.slice(gpus=part)

    def test_accepts_numpy_numbers(self) -> None:
        numpy = pytest.importorskip("numpy")
        part = HOSTS.slice(hosts=numpy.int64(1), gpus=numpy.array([2, 1]))
        assert part.ranks() == [6, 5]

    @pytest.mark.parametrize(
        ("dims", "error", "message"),
        [
            ({"cpus": 0}, UnknownDim, 'no dimension "cpus": use one of hosts, gpus'),
            ({"gpus": 4}, MeshIndexError, 'index 4 is out of range for dimension "gpus" of size 4'),
            ({"gpus": -5}, MeshIndexError, "use -4 to 3"),
            ({"gpus": 10**30}, MeshIndexError, "out of range"),
            ({"gpus": [0, 9]}, MeshIndexError, "index 9 is out of range"),
            (
                {"gpus": slice(3, 1)},
                ShapeError,
                'the selection of dimension "gpus" (size 4) is empty',
            ),
            ({"gpus": []}, ShapeError, "select at least one index"),
            ({"gpus": [1, -3]}, ShapeError, 'index 1 of dimension "gpus" is listed twice'),
            ({"gpus": slice(None, None, 0)}, ShapeError, "has step 0"),
            ({"gpus": "1"}, SelectorError, "cannot select '1' of dimension \"gpus\": use an int"),
            ({"gpus": None}, SelectorError, "use an int, a slice or a list of ints"),
            ({"gpus": 1.0}, SelectorError, "cannot select 1.0"),
            ({"gpus": True}, SelectorError, "cannot select True"),
            ({"gpus": [True, False]}, SelectorError, "cannot select True"),
            ({"gpus": slice("a", 2)}, SelectorError, "cannot select 'a'"),
        ],
    )
    def test_the_error_says_what_is_wrong_and_what_to_do(
        self, dims: dict[str, Any], error: type[ShapeError], message: str
    ) -> None:
        with pytest.raises(error) as raised:
            HOSTS.slice(**dims)
        assert type(raised.value) is error
        assert message in str(raised.value)
        assert isinstance(raised.value, (MeshError, ValueError))

    def test_error_survives_pickling(self) -> None:
        with pytest.raises(UnknownDim) as raised:
            HOSTS.slice(cpus=0)
        copy = pickle.loads(pickle.dumps(raised.value))
        assert (type(copy), str(copy)) == (UnknownDim, str(raised.value))

    def test_dimension_may_have_any_name(self) -> None:
        odd = Ranks(Extent(["self", "dim name"], [2, 3]).region)
        assert odd.slice(**{"self": 1, "dim name": 2}).ranks() == [5]
        assert odd.rename(self="name").sizes == {"name": 2, "dim name": 3}


class TestReshaping:
    def test_split_infers_one_size(self) -> None:
        assert HOSTS.split(gpus=("dp", "tp"), tp=2).sizes == {"hosts": 2, "dp": 2, "tp": 2}
        both = HOSTS.split(hosts=("a", "b"), gpus=("c", "d"), a=1, d=4)
        assert both.sizes == {"a": 1, "b": 2, "c": 1, "d": 4}
        assert HOSTS.split(gpus=("only",)).sizes == {"hosts": 2, "only": 4}

    @pytest.mark.parametrize(
        ("dims", "error", "message"),
        [
            (
                {"gpus": ("a", "b"), "a": 3},
                SplitError,
                "into (a=3, b=?): the sizes given must divide",
            ),
            ({"gpus": ("a", "b")}, SplitError, "give all sizes but one"),
            ({"gpus": ("a", "b"), "a": 1, "b": 2}, SplitError, "must multiply to it"),
            ({"gpus": ("a", "b"), "a": 0}, SplitError, "must divide"),
            ({"gpus": ("a", "b"), "a": -2}, SplitError, "must divide"),
            ({"gpus": ("a", "b"), "a": 2, "c": 2}, SplitError, 'a size is given for "c"'),
            ({"gpus": "ab"}, SplitError, "cannot split into 'ab': give labels"),
            ({"gpus": ("a", "hosts"), "a": 2}, ShapeError, 'dimension "hosts" is named twice'),
            (
                {"cpus": ("a", "b"), "a": 2},
                UnknownDim,
                'no dimension "cpus": use one of hosts, gpus',
            ),
        ],
    )
    def test_refuses_an_invalid_split(
        self, dims: dict[str, Any], error: type[ShapeError], message: str
    ) -> None:
        with pytest.raises(error) as raised:
            HOSTS.split(**dims)
        assert message in str(raised.value)
        assert isinstance(raised.value, ValueError)

    def test_any_slice_can_be_flattened_and_split(self) -> None:
        part = mesh(hosts=3, gpus=4).slice(hosts=[2, 0], gpus=slice(3, None, -2))
        assert part.ranks() == [11, 9, 3, 1]
        flat = part.flatten("workers")
        assert (flat.sizes, flat.ranks()) == ({"workers": 4}, [11, 9, 3, 1])
        assert flat.slice(workers=slice(1, 3)).ranks() == [9, 3]
        square = flat.slice(workers=[3, 2, 1, 0]).split(workers=("a", "b"), a=2)
        assert square.slice(b=0).ranks() == [1, 9]

    def test_mesh_without_dimensions_can_be_flattened(self) -> None:
        assert mesh().flatten("all").sizes == {"all": 1}

    def test_names_can_be_swapped(self) -> None:
        swapped = HOSTS.rename(hosts="gpus", gpus="hosts")
        assert swapped.sizes == {"gpus": 2, "hosts": 4}
        with pytest.raises(ValueError, match='no dimension "cpus"'):
            HOSTS.rename(cpus="x")
        with pytest.raises(ShapeError, match="named twice"):
            HOSTS.rename(gpus="hosts")


class TestMesh:
    def test_reports_its_sizes(self) -> None:
        assert HOSTS.size() == len(HOSTS) == 8
        assert HOSTS.size("gpus") == 4
        assert HOSTS.size(["hosts", "gpus"]) == 8
        assert HOSTS.extent == Extent(["hosts", "gpus"], [2, 4])
        with pytest.raises(KeyError, match="no dimension"):
            HOSTS.size("cpus")

    def test_iterates_over_single_member_meshes(self) -> None:
        part = HOSTS.slice(gpus=slice(None, None, -3))
        assert [one.ranks() for one in part] == [[3], [0], [7], [4]]
        assert all(one.sizes == {} and len(one) == 1 for one in part)

    @pytest.mark.parametrize(
        ("index", "ranks", "sizes"),
        [
            (0, [1], {}),
            (-1, [6], {}),
            (Point(1, Extent(["hosts", "gpus"], [2, 2])), [2], {}),
            (slice(1, 3), [2, 5], {"rank": 2}),
            (slice(None, None, -1), [6, 5, 2, 1], {"rank": 4}),
            ([3, 0], [6, 1], {"rank": 2}),
            (range(1, 3), [2, 5], {"rank": 2}),
        ],
    )
    def test_is_indexed_by_flat_position(
        self, index: Any, ranks: list[int], sizes: dict[str, int]
    ) -> None:
        part = HOSTS.slice(gpus=slice(1, 3))[index]
        assert (part.ranks(), part.sizes) == (ranks, sizes)

    def test_flat_slice_keeps_the_only_label(self) -> None:
        assert mesh(gpus=4)[1:3].sizes == {"gpus": 2}

    @pytest.mark.parametrize(
        ("index", "error", "message"),
        [
            (8, IndexError, "index 8 is out of range for {hosts: 2, gpus: 4} of 8 members"),
            (-9, IndexError, "use -8 to 7"),
            ("gpus", TypeError, "use an int, a slice, a list of ints or a point"),
            ((0, 1), TypeError, "or slice(dim=...) for one dimension"),
            (Point(0, Extent(["a"], [8])), IndexError, "use a point of this mesh"),
            (slice(8, None), ValueError, "is empty"),
        ],
    )
    def test_the_error_says_what_is_wrong_with_an_index(
        self, index: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error) as raised:
            HOSTS[index]
        assert isinstance(raised.value, ShapeError)
        assert message in str(raised.value)


class TestRegion:
    @pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
    @pytest.mark.parametrize(
        "region",
        [
            HOSTS._region,
            HOSTS.slice(gpus=slice(None, None, -1))._region,
            HOSTS.slice(gpus=[2, 0, 3])._region,
            HOSTS.slice(gpus=slice(0, 3)).flatten("x").slice(x=slice(1, None, 2))._region,
        ],
    )
    def test_survives_pickling(self, dumps: Dumps, region: Region) -> None:
        copy = pickle.loads(dumps(region))
        assert (copy, hash(copy), copy.ranks()) == (region, hash(region), region.ranks())

    def test_equality_does_not_depend_on_construction(self) -> None:
        flat = HOSTS.slice(gpus=slice(0, 3)).flatten("x")
        listed = HOSTS.flatten("x").slice(x=[0, 1, 2, 4, 5, 6])
        assert flat._region == listed._region
        assert hash(flat._region) == hash(listed._region)
        assert flat._region != flat.rename(x="y")._region
        other: object = "x"
        assert flat._region != other

    def test_finds_members_by_index_rank_and_point(self) -> None:
        region = HOSTS.slice(gpus=[3, 1])._region
        assert (list(region), len(region), 5 in region, 4 in region) == (
            [3, 1, 7, 5],
            4,
            True,
            False,
        )
        assert (region.rank_at(-1), region.index_of(7), region.index_of(4)) == (5, 2, None)
        assert region.coordinates(2) == (1, 0)
        assert region.point_of_base_rank(7) == {"hosts": 1, "gpus": 0}
        with pytest.raises(ValueError, match="rank 4 is not in Region"):
            region.point_of_base_rank(4)
        with pytest.raises(IndexError):
            region.rank_at(4)
        with pytest.raises(IndexError):
            region.coordinates(-(2**63))

    def test_repr_shows_the_first_ranks(self) -> None:
        assert repr(HOSTS.slice(gpus=[3, 1])._region) == (
            "Region({hosts: 2, gpus: 2}, ranks=[3, 1, 7, 5])"
        )
        assert repr(mesh(a=100)._region).endswith("6, 7, ...])")

    def test_a_huge_region_is_encoded_compactly(self) -> None:
        part = mesh(hosts=50_000, gpus=8).slice(hosts=slice(1, None, 3), gpus=slice(None, None, -2))
        flat = part.flatten("w").slice(w=slice(5, None, 7))
        assert len(flat._region.encode()) < 40
        assert flat._region.index_of(flat._region.rank_at(1234)) == 1234

    def test_invalid_bytes_are_refused(self) -> None:
        with pytest.raises(ShapeError, match="not a region"):
            Region.decode(b"\x01\x01")


class TestSlice:
    def test_computes_numbers_from_offset_sizes_and_strides(self) -> None:
        numbers = Slice(offset=3, sizes=[2, 2], strides=[10, 2])
        assert list(numbers) == [3, 5, 13, 15]
        assert (len(numbers), numbers.ndim, numbers.offset) == (4, 2, 3)
        assert (numbers.sizes, numbers.strides) == ([2, 2], [10, 2])
        assert (numbers[1], numbers[1:3], numbers.get(3)) == (5, (5, 13), 15)
        assert (numbers.index(13), numbers.coordinates(13), numbers.nditem([1, 0])) == (
            2,
            [1, 0],
            13,
        )
        assert pickle.loads(pickle.dumps(numbers)) == numbers
        assert repr(numbers) == "Slice(offset=3, sizes=[2, 2], strides=[10, 2])"
        with pytest.raises(ValueError, match="4 is not in"):
            numbers.index(4)
        with pytest.raises(IndexError):
            numbers.nditem([2, 0])
        with pytest.raises(IndexError):
            numbers.nditem([1])

    def test_row_major_has_no_gaps(self) -> None:
        numbers = Slice.new_row_major([2, 1, 3])
        assert (list(numbers), numbers.strides) == ([0, 1, 2, 3, 4, 5], [3, 3, 1])

    @pytest.mark.parametrize("ranks", [[], [5], [0, 1, 2, 7, 5, 3, 4], [1, 1, 2], [9, 3]])
    def test_lists_are_covered_in_order(self, ranks: list[int]) -> None:
        assert [rank for part in Slice.from_list(ranks) for rank in part] == ranks

    def test_shape_names_the_dimensions(self) -> None:
        shape = Shape(["a", "b"], Slice(offset=3, sizes=[2, 2], strides=[10, 2]))
        assert (shape.labels, shape.ranks(), len(shape)) == (["a", "b"], [3, 5, 13, 15], 4)
        assert shape.coordinates(13) == {"a": 1, "b": 0}
        assert shape.at("a", 1).ranks() == [13, 15]
        assert shape.select("b", slice(1, None)).ranks() == [5, 15]
        assert shape.index(a=0, b=1).ranks() == [5]
        assert shape.ndslice == Slice(offset=3, sizes=[2, 2], strides=[10, 2])
        assert shape.region.as_shape() == shape == pickle.loads(pickle.dumps(shape))
        assert (str(shape), dict(shape.extent)) == ("{a: 2, b: 2}", {"a": 2, "b": 2})
        assert Shape.unity().ranks() == [0]

    def test_a_region_without_constant_strides_cannot_become_a_slice(self) -> None:
        region = HOSTS.slice(gpus=slice(0, 3)).flatten("x")._region
        with pytest.raises(ShapeError, match="no constant strides: use its ranks"):
            region.slice()


class TestTable:
    def test_the_last_two_dimensions_are_rows_and_columns(self) -> None:
        lines = HOSTS.to_table().splitlines()
        assert [line.split() for line in lines] == [
            ["hosts\\gpus", "0", "1", "2", "3"],
            ["0", "0", "1", "2", "3"],
            ["1", "4", "5", "6", "7"],
        ]

    def test_a_slice_shows_the_ranks_that_it_has_kept(self) -> None:
        assert HOSTS.slice(gpus=slice(1, None, 2)).to_table() == (
            "hosts\\gpus  0  1\n0           1  3\n1           5  7"
        )
        assert HOSTS.slice(hosts=1).to_table() == "gpus  0  1  2  3\n      4  5  6  7"
        assert HOSTS.slice(hosts=1, gpus=2).to_table() == "6"

    def test_other_dimensions_have_a_table_for_each_coordinate(self) -> None:
        assert mesh(pods=2, hosts=1, gpus=2).to_table() == (
            "pods=0\nhosts\\gpus  0  1\n0           0  1\n\n"
            "pods=1\nhosts\\gpus  0  1\n0           2  3"
        )
