//! Casts: the agents of the hosts of a region spread a message and merge the answers.

use super::outbox::{Letter, Text};
use super::{Process, RELAY, Scene, Wait};
use crate::message::{Errand, Region, Share, unpack as unpack_words};
use bytes::Bytes;
use mesh_runtime::cast::bundle::{Entry, Packer, unpack};
use mesh_runtime::cast::{Merge, Progress, Tree};
use mesh_runtime::fault;
use mesh_runtime::node::{Answer, Target};
use mesh_runtime::supervise::{Event, FailureId};
use mesh_wire::frame::{Frame, Head, Kind, TAIL_LEN_MAX};
use mesh_wire::id::ProcId;

/// A cast that this host spreads.
#[derive(Debug)]
pub(super) struct Cast {
    request: Head,
    share: Share,
    merge: Merge<Entry>,
}

impl Process {
    pub(super) fn relay_takes(&mut self, frame: &Frame, scene: &mut Scene<'_>) {
        let Some((share, errand)) = Share::decode(&frame.tail) else {
            return scene.oracle.violated(|| format!("not a cast: {frame:?}"));
        };
        self.casts_begun += 1;
        let cast = self.casts_begun;
        let region = share.region;
        let tree = Tree::new(region.hosts as usize, share.fanout);
        let hosts = tree.subtree(share.place);
        let merge = Merge::new(hosts.flat_map(|place| region.ranks_of_host(place)));
        self.casts.insert(cast, Cast { request: frame.head, share, merge });
        for below in tree.children(share.place) {
            self.pass_on(cast, Share { place: below, ..share }, &errand, scene);
        }
        let target = |rank| Target { proc: region.proc(rank), rank };
        let here = Letter {
            kind: Kind::Call,
            port: share.port,
            targets: region.ranks_of_host(share.place).map(target).collect(),
            text: Text::Forwarded(errand),
            window: scene.plan.window,
            timeout: None,
            wait: Some(Wait::CastPart { cast, below: None }),
            is_stream: true,
            refused: None,
        };
        self.submit(here, scene);
    }

    fn pass_on(&mut self, cast: u64, share: Share, errand: &Errand, scene: &mut Scene<'_>) {
        let host = share.region.host + share.place as u32;
        let agent = Target { proc: ProcId::new(host, 0), rank: share.place as u32 };
        let wait = Wait::CastPart { cast, below: Some(share.place) };
        self.submit(Letter::new(RELAY, [agent].into(), share.encode(errand), wait), scene);
    }

    /// Answers for a part of a cast; the last one sends them all up.
    pub(super) fn cast_answered(
        &mut self,
        id: u64,
        below: Option<usize>,
        answers: &[Answer],
        scene: &mut Scene<'_>,
    ) {
        let Some(cast) = self.casts.get_mut(&id) else {
            return scene.oracle.violated(|| format!("{} answers after cast {id}", self.id));
        };
        let mut is_complete = false;
        for answer in answers {
            let progress = match below {
                None => cast.merge.add(answer.rank, entry_of(answer)),
                Some(place) => add_bundle(cast, place, answer, scene),
            };
            is_complete |= progress == Progress::Complete;
        }
        if !is_complete {
            return;
        }
        let mut cast = self.casts.remove(&id).expect("it was looked up above");
        let mut packer = Packer::new(TAIL_LEN_MAX);
        for (_, entry) in cast.merge.take() {
            packer.push(&entry);
        }
        let mut bodies = packer.finish();
        scene.oracle.expect(bodies.len() == 1, || format!("cast {id} has {} bodies", bodies.len()));
        self.node.answer(&cast.request, 0, (0, 0), bodies.pop().unwrap_or_default());
    }

    /// The answers of a cast are back at the program that made it.
    pub(super) fn cast_ended(
        &mut self,
        tag: u64,
        region: Region,
        answer: &Answer,
        scene: &mut Scene<'_>,
    ) {
        let entries = match answer.code {
            0 => unpack(&answer.frame.body(), region.count() as usize),
            code => Ok((0..region.count()).map(|rank| fault_entry(rank, code)).collect()),
        };
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) => return scene.oracle.violated(|| format!("cast {tag}: {error}")),
        };
        for entry in entries {
            let value = unpack_words(&entry.tail).filter(|_| !entry.is_fault);
            if let (true, Some([failure])) = (entry.is_fault, unpack_words(&entry.tail)) {
                self.supervise(Event::Observed { failure: FailureId(failure) }, scene);
            }
            let from = region.proc(entry.rank);
            scene.oracle.answered(tag, entry.rank, from, entry.flags, value.map(|[word]| word));
        }
        scene.oracle.tally.casts += 1;
        scene.oracle.call_ended(tag);
    }
}

fn entry_of(answer: &Answer) -> Entry {
    let head = &answer.frame.head;
    Entry {
        rank: answer.rank,
        is_fault: answer.code != 0,
        flags: answer.code,
        meta_len: head.meta_len,
        part_count: head.part_count,
        tail: answer.frame.tail.clone(),
    }
}

fn fault_entry(rank: u32, code: u8) -> Entry {
    Entry { rank, is_fault: true, flags: code, meta_len: 0, part_count: 0, tail: Bytes::new() }
}

fn add_bundle(cast: &mut Cast, place: usize, answer: &Answer, scene: &mut Scene<'_>) -> Progress {
    let Share { region, fanout, .. } = cast.share;
    if answer.code != 0 {
        let tree = Tree::new(region.hosts as usize, fanout);
        let hosts = tree.subtree(place);
        let ranks = hosts.flat_map(|place| region.ranks_of_host(place));
        return cast.merge.fail_ranks(ranks, |rank| fault_entry(rank, fault::HOST_DIED));
    }
    match unpack(&answer.frame.body(), cast.merge.open_count()) {
        Ok(entries) => cast.merge.add_bundle(entries.into_iter().map(|entry| (entry.rank, entry))),
        Err(error) => {
            scene.oracle.violated(|| format!("a bundle from place {place}: {error}"));
            Progress::Ignored
        }
    }
}
