//! Regions behave like a list of all their ranks, but do not store one.

use crate::seeded;
use bytes::BytesMut;
use mesh_wire::region::{Region, RegionError, Selector};
use proptest::prelude::*;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A region that enumerates its ranks: obviously correct, and the model for comparison.
#[derive(Clone, Debug)]
struct Listed {
    dims: Vec<(String, usize)>,
    ranks: Vec<u32>,
}

/// One step of a random chain. Its numbers are reduced to the range that the current region allows.
#[derive(Clone, Debug)]
enum Step {
    Index(usize, usize),
    Range(usize, usize, usize, i64),
    List(usize, Vec<usize>),
    Split(usize, usize),
    Flatten,
    Rename(usize),
}

impl Listed {
    fn row_major(sizes: &[usize]) -> Self {
        let dims = sizes.iter().enumerate().map(|(at, &size)| (format!("d{at}"), size)).collect();
        Self { dims, ranks: (0..sizes.iter().product::<usize>() as u32).collect() }
    }

    /// Keeps these indices of dimension `at`.
    fn keep(&self, at: usize, indices: &[usize]) -> Self {
        let inner: usize = self.dims[at + 1..].iter().map(|dim| dim.1).product();
        let size = self.dims[at].1;
        let ranks = self.ranks.chunks(size * inner).flat_map(|block| {
            indices.iter().flat_map(move |&i| block[i * inner..(i + 1) * inner].iter().copied())
        });
        let mut dims = self.dims.clone();
        dims[at].1 = indices.len();
        Self { ranks: ranks.collect(), dims }
    }

    fn labels(&self) -> Vec<&str> {
        self.dims.iter().map(|dim| dim.0.as_str()).collect()
    }
}

/// Applies the step to both, or to neither if it is not applicable.
fn take(step: &Step, region: Region, model: Listed) -> (Region, Listed) {
    let dims = model.dims.len();
    match step {
        Step::Flatten => {
            let flat = region.flatten("all").expect("any region can be flattened");
            (flat, Listed { dims: vec![("all".to_owned(), model.ranks.len())], ..model })
        }
        _ if dims == 0 => (region, model),
        Step::Index(at, index) => {
            let at = at % dims;
            let (label, size) = model.dims[at].clone();
            let index = index % size;
            // The same index, counted from the end.
            let negative = Selector::Index(index as i64 - size as i64);
            let selected = region.select(&label, &negative).expect("it is in range");
            let mut model = model.keep(at, &[index]);
            model.dims.remove(at);
            (selected, model)
        }
        Step::Range(at, start, stop, step) => {
            range(region, model, at % dims, (*start, *stop, *step))
        }
        Step::List(at, list) => {
            let at = at % dims;
            let (label, size) = model.dims[at].clone();
            let mut indices: Vec<usize> = Vec::new();
            for index in list.iter().map(|index| index % size) {
                if !indices.contains(&index) {
                    indices.push(index);
                }
            }
            let selector = Selector::List(indices.iter().map(|&index| index as i64).collect());
            (region.select(&label, &selector).expect("it is in range"), model.keep(at, &indices))
        }
        Step::Split(at, seed) => split(region, model, at % dims, *seed),
        Step::Rename(at) => {
            let at = at % dims;
            let mut model = model;
            let old = model.dims[at].0.clone();
            let new = format!("{}x", &old[..old.len().min(20)]);
            if model.labels().contains(&new.as_str()) {
                return (region, model);
            }
            model.dims[at].0.clone_from(&new);
            let renamed = region.rename([(old.as_str(), new.as_str())]);
            (renamed.expect("the name is free"), model)
        }
    }
}

fn range(
    region: Region,
    model: Listed,
    at: usize,
    (start, stop, step): (usize, usize, i64),
) -> (Region, Listed) {
    let (label, size) = model.dims[at].clone();
    let (start, stop) = ((start % (size + 1)) as i64, (stop % (size + 1)) as i64);
    let selector = Selector::Range { start: Some(start), stop: Some(stop), step };
    let mut indices = Vec::new();
    let mut index = if step < 0 { start.min(size as i64 - 1) } else { start };
    while (step > 0 && index < stop) || (step < 0 && index > stop) {
        indices.push(index as usize);
        index += step;
    }
    match region.select(&label, &selector) {
        Ok(selected) => (selected, model.keep(at, &indices)),
        Err(error) => {
            assert_eq!(error, RegionError::Empty { dim: label, size });
            assert!(indices.is_empty(), "there is something to select: {indices:?}");
            (region, model)
        }
    }
}

fn split(region: Region, mut model: Listed, at: usize, seed: usize) -> (Region, Listed) {
    let (label, size) = model.dims[at].clone();
    let divisors: Vec<usize> = (1..=size).filter(|part| size % part == 0).collect();
    let outer = divisors[seed % divisors.len()];
    let names = [format!("p{seed}"), format!("q{seed}")];
    if model.dims.len() == 16 || names.iter().any(|name| model.labels().contains(&name.as_str())) {
        return (region, model);
    }
    // One of the two sizes is computed.
    let sizes =
        if seed.is_multiple_of(2) { [Some(outer), None] } else { [None, Some(size / outer)] };
    let parts = [(names[0].as_str(), sizes[0]), (names[1].as_str(), sizes[1])];
    let cut = region.split(&label, &parts).expect("any dimension can be split");
    model.dims.splice(at..=at, [(names[0].clone(), outer), (names[1].clone(), size / outer)]);
    (cut, model)
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0_usize..64;
    prop_oneof![
        1 => (number.clone(), number.clone()).prop_map(|(at, index)| Step::Index(at, index)),
        4 => (number.clone(), number.clone(), number.clone(), prop_oneof![1_i64..4, -3_i64..0])
            .prop_map(|(at, start, stop, step)| Step::Range(at, start, stop, step)),
        2 => (number.clone(), prop::collection::vec(number.clone(), 1..6))
            .prop_map(|(at, list)| Step::List(at, list)),
        3 => (number.clone(), number.clone()).prop_map(|(at, seed)| Step::Split(at, seed)),
        3 => Just(Step::Flatten),
        1 => number.prop_map(Step::Rename),
    ]
}

fn hash(region: &Region) -> u64 {
    let mut hasher = DefaultHasher::new();
    region.hash(&mut hasher);
    hasher.finish()
}

fn encoded(region: &Region) -> BytesMut {
    let mut bytes = BytesMut::new();
    region.encode(&mut bytes);
    bytes
}

fn assert_same(region: &Region, model: &Listed) {
    let dims: Vec<(String, usize)> =
        region.labels().map(str::to_owned).zip(region.sizes()).collect();
    assert_eq!(dims, model.dims);
    assert_eq!(region.len(), model.ranks.len());
    assert_eq!(region.ranks().collect::<Vec<_>>(), model.ranks);
    let places: HashMap<u32, usize> =
        model.ranks.iter().enumerate().map(|(index, &rank)| (rank, index)).collect();
    for rank in 0..model.ranks.iter().max().map_or(0, |max| max + 3) {
        assert_eq!(region.index_of(rank), places.get(&rank).copied(), "index of rank {rank}");
    }
    assert_eq!(region.rank_at(region.len()), None);
    let is_whole = model.ranks.iter().enumerate().all(|(index, &rank)| index as u32 == rank);
    assert_eq!(region.is_row_major_whole(), is_whole);
}

/// Selecting the coordinates of an index yields the member at this index.
fn assert_coordinates(region: &Region) {
    let labels: Vec<String> = region.labels().map(str::to_owned).collect();
    for index in [0, region.len() / 2, region.len() - 1] {
        let coordinates = region.coordinates(index).expect("the index is below the length");
        let selectors: Vec<Selector> =
            coordinates.iter().map(|&at| Selector::Index(at as i64)).collect();
        let one = region.slice(labels.iter().map(String::as_str).zip(&selectors));
        assert_eq!(one.as_ref().ok(), region.member(index).as_ref());
        assert_eq!(one.expect("coordinates exist").rank_at(0), region.rank_at(index));
    }
    assert_eq!(region.coordinates(region.len()), None);
}

proptest! {
    #![proptest_config(seeded::config(2000))]

    #[test]
    fn any_chain_of_operations_equals_the_enumerated_model(
        sizes in prop::collection::vec(1_usize..6, 0..5),
        steps in prop::collection::vec(step(), 0..14),
    ) {
        let labels: Vec<String> = (0..sizes.len()).map(|at| format!("d{at}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let mut region = Region::row_major(&labels, &sizes).expect("small sizes fit");
        let mut model = Listed::row_major(&sizes);
        for step in &steps {
            (region, model) = take(step, region, model);
            assert_same(&region, &model);
        }
        assert_coordinates(&region);
        let bytes = encoded(&region);
        let decoded = Region::decode(&bytes).expect("what was encoded decodes");
        prop_assert_eq!(&encoded(&decoded), &bytes);
        prop_assert_eq!(&decoded, &region);
    }

    #[test]
    fn regions_with_equal_ranks_are_equal_regardless_of_their_construction(
        sizes in prop::collection::vec(1_usize..4, 1..4),
        steps in prop::collection::vec(step(), 0..8),
    ) {
        let labels: Vec<String> = (0..sizes.len()).map(|at| format!("d{at}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let whole = Region::row_major(&labels, &sizes).expect("small sizes fit");
        let mut model = Listed::row_major(&sizes);
        let mut region = whole.clone();
        for step in &steps {
            (region, model) = take(step, region, model);
        }
        // The same members, picked individually from a mesh without structure.
        let size = whole.len();
        let flat = Region::row_major(&["all"], &[size]).expect("small sizes fit");
        let picked = Selector::List(model.ranks.iter().map(|&rank| i64::from(rank)).collect());
        let listed = flat.select("all", &picked).expect("ranks are in range");
        let mut same = region.flatten("all").expect("any region can be flattened");
        prop_assert_eq!(&same, &listed);
        prop_assert_eq!(hash(&same), hash(&listed));
        same = same.rename([("all", "other")]).expect("the name is free");
        prop_assert_ne!(same, listed);
    }
}

fn mesh() -> Region {
    Region::row_major(&["hosts", "gpus"], &[1000, 8]).expect("sizes fit")
}

fn ranks(region: &Region) -> Vec<u32> {
    region.ranks().collect()
}

#[test]
fn a_flattened_slice_is_encoded_in_few_bytes() {
    let odd = Selector::Range { start: Some(1), stop: None, step: 2 };
    let region = mesh().select("gpus", &odd).expect("in range");
    let flat = region.select("hosts", &odd).expect("in range").flatten("w").expect("flattens");
    assert_eq!(flat.len(), 2000);
    assert!(encoded(&flat).len() < 32, "{} bytes", encoded(&flat).len());
    let every_third = Selector::Range { start: None, stop: None, step: -3 };
    let picked = flat.select("w", &every_third).expect("in range");
    assert!(encoded(&picked).len() < 32, "{} bytes", encoded(&picked).len());
    assert_eq!(picked.rank_at(1), Some(7993));
}

#[test]
fn layers_are_merged_when_a_split_undoes_a_flatten() {
    let even = Selector::Range { start: None, stop: None, step: 2 };
    let sliced = mesh().select("gpus", &even).expect("in range");
    let sliced = sliced.select("hosts", &even).expect("in range");
    let back = sliced.flatten("all").expect("flattens");
    assert_eq!(back.strides(), None);
    let back = back.split("all", &[("hosts", None), ("gpus", Some(4))]).expect("splits");
    assert_eq!(back, sliced);
    assert_eq!(back.strides(), Some((0, vec![16, 2])));
}

/// Reshapes a region so that its strides can never be merged: each turn flattens it, drops the
/// first member and splits it again.
fn reshaped(mut region: Region, turns: usize) -> Result<(Region, Listed), RegionError> {
    let mut model = Listed::row_major(&region.sizes().collect::<Vec<_>>());
    for turn in 0..turns {
        let outer = [5, 3, 7, 2][turn % 4];
        let len = (model.ranks.len() - 1) / outer * outer;
        let most = Selector::Range { start: Some(1), stop: Some(len as i64 + 1), step: 1 };
        let flat = region.flatten("f")?.select("f", &most)?;
        let cut = flat.split("f", &[("o", Some(outer)), ("i", None)])?;
        let but_last = Selector::Range { start: None, stop: Some(-1), step: 1 };
        region = cut.select("i", &but_last)?;
        let ranks = model.ranks[1..=len].to_vec();
        let dims = vec![("o".to_owned(), outer), ("i".to_owned(), len / outer)];
        model = Listed { dims, ranks };
        model = model.keep(1, &(0..len / outer - 1).collect::<Vec<_>>());
    }
    Ok((region, model))
}

#[test]
fn a_region_reshaped_repeatedly_becomes_a_list() {
    let whole = Region::row_major(&["a", "b"], &[30, 40]).expect("sizes fit");
    let (deep, model) = reshaped(whole.clone(), 7).expect("it can be described");
    assert_same(&deep, &model);
    assert!(encoded(&deep).len() < 128, "{} bytes", encoded(&deep).len());
    let (listed, model) = reshaped(whole, 20).expect("it can be listed");
    assert_same(&listed, &model);
    assert_eq!(Region::decode(&encoded(&listed)), Ok(listed));

    let large = Region::row_major(&["a", "b"], &[500, 500]).expect("sizes fit");
    let refused = reshaped(large, 20).expect_err("it is too large to be listed");
    assert!(matches!(refused, RegionError::TooDeep(_)), "{refused}");
}

#[test]
fn a_list_of_indices_keeps_its_order() {
    let region = mesh().select("hosts", &Selector::List(vec![7, 2, -1])).expect("in range");
    let region = region.select("gpus", &Selector::List(vec![4, 5])).expect("in range");
    assert_eq!(ranks(&region), [60, 61, 20, 21, 7996, 7997]);
    assert_eq!(region.index_of(20), Some(2));
    assert_eq!(region.index_of(22), None);
}

#[test]
fn strides_of_any_order_and_sign_are_supported() {
    let columns = Region::strided(&["a", "b"], &[2, 3], &[1, 2], 4).expect("no overlap");
    assert_eq!(ranks(&columns), [4, 6, 8, 5, 7, 9]);
    let back = Region::strided(&["a"], &[3], &[-2], 4).expect("no overlap");
    assert_eq!(ranks(&back), [4, 2, 0]);
    for region in [columns, back] {
        for (index, rank) in region.ranks().enumerate() {
            assert_eq!(region.index_of(rank), Some(index));
        }
        assert!(!region.is_row_major_whole());
    }
}

#[test]
fn ranks_can_be_iterated_from_both_ends() {
    let region = mesh().select("hosts", &Selector::Index(1)).expect("in range");
    let mut walk = region.ranks();
    assert_eq!((walk.len(), walk.next_back(), walk.nth(2)), (8, Some(15), Some(10)));
    assert_eq!((walk.len(), walk.nth(9), walk.next(), walk.next_back()), (4, None, None, None));
}

fn check(result: Result<Region, RegionError>, message: &str) {
    assert_eq!(result.expect_err("it must be refused").to_string(), message);
}

#[test]
fn each_error_says_what_to_do() {
    let mesh = mesh();
    let all = |step| Selector::Range { start: None, stop: None, step };
    let nothing = Selector::Range { start: Some(5), stop: Some(2), step: 1 };
    check(mesh.select("cpus", &all(1)), "no dimension \"cpus\": use one of hosts, gpus");
    check(
        mesh.select("gpus", &Selector::Index(8)),
        "index 8 is out of range for dimension \"gpus\" of size 8: use -8 to 7",
    );
    check(
        mesh.select("gpus", &Selector::List(vec![1, i64::MIN])),
        "index -9223372036854775808 is out of range for dimension \"gpus\" of size 8: use -8 to 7",
    );
    check(
        mesh.select("gpus", &nothing),
        "the selection of dimension \"gpus\" (size 8) is empty: select at least one index",
    );
    check(
        mesh.select("gpus", &Selector::List(vec![])),
        "the selection of dimension \"gpus\" (size 8) is empty: select at least one index",
    );
    check(
        mesh.select("gpus", &Selector::List(vec![1, 2, -7])),
        "index 1 of dimension \"gpus\" is listed twice: list each index once",
    );
    check(
        mesh.select("gpus", &all(0)),
        "the slice of dimension \"gpus\" has step 0: use a nonzero step",
    );
    check(
        mesh.split("gpus", &[("a", Some(3)), ("b", None)]),
        "cannot split dimension \"gpus\" of size 8 into (a=3, b=?): the sizes given must divide it",
    );
    check(
        mesh.split("gpus", &[("a", None), ("b", None)]),
        "cannot split dimension \"gpus\" of size 8 into (a=?, b=?): give all sizes but one",
    );
    check(mesh.rename([("gpus", "hosts")]), "dimension \"hosts\" is named twice: rename one");
    check(mesh.flatten(""), "dimension \"\" has no name: name it");
    check(
        Region::row_major(&["a", "b"], &[1]),
        "2 labels for 1 sizes: give one size (and stride) for each label",
    );
    check(
        Region::row_major(&["a"], &[0]),
        "dimension \"a\" has size 0: give each dimension at least one member",
    );
    check(
        Region::strided(&["a", "b"], &[2, 2], &[1, 1], 0),
        "strides overlap: each must be longer than all shorter ones with their sizes together",
    );
    let lone = mesh.member(3).expect("in range");
    check(lone.select("gpus", &all(1)), "no dimension \"gpus\": the mesh has no dimensions");
}

#[test]
fn oversized_regions_are_refused_without_overflow() {
    let huge = usize::MAX;
    for sizes in [[huge, 1], [huge, huge], [1 << 32, 2], [1 << 63, 2]] {
        assert_eq!(Region::row_major(&["a", "b"], &sizes), Err(RegionError::TooLarge));
    }
    for (size, stride, offset) in
        [(2, i64::MIN, 0), (2, i64::MAX, 1), (huge, 1, 0), (2, -1, 0), (1 << 32, 1, 1)]
    {
        let region = Region::strided(&["a"], &[size], &[stride], offset);
        assert_eq!(region, Err(RegionError::TooLarge), "{size} {stride} {offset}");
    }
    let most = Region::row_major(&["a", "b"], &[1 << 16, 1 << 16]).expect("32 bits fit");
    assert_eq!(most.rank_at(most.len() - 1), Some(u32::MAX));
    let far = Selector::Range { start: Some(i64::MIN), stop: Some(i64::MAX), step: i64::MAX };
    assert_eq!(most.select("a", &far).map(|region| region.len()), Ok(1 << 16));
    let back = Selector::Range { start: Some(i64::MAX), stop: Some(i64::MIN), step: i64::MIN };
    assert_eq!(most.select("a", &back).expect("one is left").rank_at(0), Some(0xffff_0000));
    let wide = [("p", Some(1 << 63)), ("q", Some(2))];
    assert!(matches!(most.split("a", &wide), Err(RegionError::Split { .. })));
}
