//! Compares two stores on one folder, as two processes have them, with a table in memory.

use crate::material::{Chunk, bytes, chunk, folder, open};
use mesh_chunks::{ChunkId, Store, StoreOptions};
use proptest::prelude::*;
use std::collections::HashMap;

const OPTIONS: StoreOptions =
    StoreOptions { budget_bytes: 1 << 30, pack_bytes: 20_000, keep_cached: true };

#[derive(Clone, Debug)]
enum Step {
    Put(u64),
    PutMany(Vec<u64>),
    Get(u64),
    Read(u64, usize, usize),
    Missing(Vec<u64>),
    Reopen,
}

fn steps() -> impl Strategy<Value = Step> {
    let number = 0..60_u64;
    prop_oneof![
        4 => number.clone().prop_map(Step::Put),
        2 => prop::collection::vec(number.clone(), 0..20).prop_map(Step::PutMany),
        4 => number.clone().prop_map(Step::Get),
        2 => (number.clone(), 0..3000_usize, 0..3000_usize)
            .prop_map(|(number, start, count)| Step::Read(number, start, count)),
        2 => prop::collection::vec(number, 0..20).prop_map(Step::Missing),
        1 => Just(Step::Reopen),
    ]
}

/// Some chunks are longer than a pack.
fn numbered(number: u64) -> Chunk {
    chunk(number, if number.is_multiple_of(20) { 25_000 } else { 1 + number as usize * 50 })
}

fn take_step(store: &Store, step: &Step, model: &mut HashMap<ChunkId, Vec<u8>>) {
    match step {
        Step::Put(number) => {
            let Chunk { id, bytes } = numbered(*number);
            store.put(id, &bytes).expect("it is put");
            model.insert(id, bytes);
        }
        Step::PutMany(numbers) => {
            let chunks: Vec<_> = numbers.iter().map(|number| numbered(*number)).collect();
            let pairs: Vec<_> = chunks.iter().map(|chunk| (chunk.id, &chunk.bytes[..])).collect();
            store.put_verified(&pairs).expect("they are put");
            model.extend(chunks.into_iter().map(|Chunk { id, bytes }| (id, bytes)));
        }
        Step::Get(number) => {
            let id = numbered(*number).id;
            assert_eq!(store.get(&id).expect("no error"), model.get(&id).cloned());
            assert_eq!(store.has(&id), model.contains_key(&id));
            let length = model.get(&id).map(|bytes| bytes.len() as u32);
            assert_eq!(store.length(&id), length);
        }
        Step::Read(number, start, count) => {
            let id = numbered(*number).id;
            let mut into = bytes(0, *count);
            let result = store.read(&id, *start, &mut into);
            match model.get(&id) {
                None => assert!(!result.expect("no error")),
                Some(whole) if start + count > whole.len() => {
                    result.expect_err("too far");
                }
                Some(whole) => {
                    assert!(result.expect("no error"));
                    assert_eq!(into, whole[*start..start + count]);
                }
            }
        }
        Step::Missing(numbers) => {
            let ids: Vec<_> = numbers.iter().map(|number| numbered(*number).id).collect();
            let expected: Vec<_> =
                (0..ids.len()).filter(|at| !model.contains_key(&ids[*at])).collect();
            assert_eq!(store.missing(&ids), expected);
        }
        Step::Reopen => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn two_stores_share_the_chunks_put_into_either(
        steps in prop::collection::vec((0..2_usize, steps()), 1..60),
    ) {
        let folder = folder();
        let mut stores = [open(folder.path(), OPTIONS), open(folder.path(), OPTIONS)];
        let mut model = HashMap::new();
        for (which, step) in &steps {
            if matches!(step, Step::Reopen) {
                stores[*which] = open(folder.path(), OPTIONS);
            }
            take_step(&stores[*which], step, &mut model);
        }
        let fresh = open(folder.path(), OPTIONS);
        for (id, bytes) in &model {
            let found = fresh.get(id).expect("no error");
            prop_assert_eq!(found.as_ref(), Some(bytes));
        }
    }
}
