//! The files of a tree: detection of hard links, and contents.

use crate::content::file_reader::Content;
use crate::content::reader_pool::{Job, Outcome, read_all};
use crate::error::SnapshotError;
use crate::options::Options;
use crate::walk::Listings;
use crate::walk::file_stat::FileStat;
use crate::walk::listing::{EntryKind, ListedEntry, join};
use crate::walk::root::Root;
use std::collections::HashMap;
use std::path::PathBuf;

/// A file with at least one name.
#[derive(Debug)]
struct Known {
    /// Listing numbers and indices of the names there.
    names: Vec<(u32, u32)>,
    content: Option<Content>,
}

/// Contents of the files of a tree.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Contents by the file numbers in the listings; `None` if the name is not a file any more.
    pub(crate) contents: Vec<Option<Content>>,
    /// Files that could not be read.
    pub(crate) skipped: Vec<PathBuf>,
    /// Number of files that were not read because their content was known.
    pub(crate) reused: u64,
    /// Number of files that were read, and their total size in bytes.
    pub(crate) read: (u64, u64),
}

/// Returns the known content of a file with this metadata.
pub(crate) type Recall<'a> = dyn Fn(&FileStat) -> Option<Content> + 'a;

/// Reads all files, and corrects the listings for names that were replaced since.
///
/// # Errors
/// A file cannot be read and is not skipped, or changes during each attempt to read it.
pub(crate) fn read_files(
    root: &Root,
    options: &Options,
    listings: &mut Listings,
    recall: &Recall<'_>,
) -> Result<Files, SnapshotError> {
    let mut known = identify(listings);
    let mut files = Files::default();
    let mut unread = Vec::new();
    for (number, file) in known.iter_mut().enumerate() {
        let stat = at(listings, file.names[0]).stat;
        file.content = recall(&stat);
        match file.content {
            Some(_) => files.reused += 1,
            None => unread.push(number),
        }
    }
    while !unread.is_empty() {
        let jobs: Vec<Job> = unread.iter().map(|number| known[*number].names[0]).collect();
        let outcomes = read_all(root, options, listings, &jobs)?;
        let mut again = Vec::new();
        for ((number, job), outcome) in unread.into_iter().zip(jobs).zip(outcomes) {
            match &outcome {
                Outcome::Skipped => files.skipped.push(root.full(&path(listings, job))),
                Outcome::Content(content) => {
                    files.read.0 += 1;
                    files.read.1 += content.stat.file_version.size;
                }
                Outcome::Replaced(_) | Outcome::Gone => {}
            }
            again.extend(settle(listings, &mut known, number, outcome));
        }
        unread = again;
    }
    files.contents = known.into_iter().map(|file| file.content).collect();
    Ok(files)
}

/// Numbers the files. Hard links of the same file get the same number.
fn identify(listings: &mut Listings) -> Vec<Known> {
    let mut known: Vec<Known> = Vec::new();
    let mut linked = HashMap::new();
    for (directory, listing) in listings.iter_mut().enumerate() {
        let Some(listing) = listing else { continue };
        for (nth, ListedEntry { stat, kind, .. }) in listing.names.iter_mut().enumerate() {
            let EntryKind::File(number) = kind else { continue };
            let next = known.len() as u32;
            let first = if stat.has_links {
                *linked.entry(stat.file_version.identity()).or_insert(next)
            } else {
                next
            };
            *number = first;
            let name = (directory as u32, nth as u32);
            match known.get_mut(first as usize) {
                Some(file) => file.names.push(name),
                None => known.push(Known { names: vec![name], content: None }),
            }
        }
    }
    known
}

/// Records the outcome for a file. Returns the number of a file that is still to be read, if any.
fn settle(
    listings: &mut Listings,
    known: &mut Vec<Known>,
    number: usize,
    outcome: Outcome,
) -> Option<usize> {
    let name = known[number].names[0];
    let listed = at_mut(listings, name);
    let was = listed.stat.file_version.identity();
    match outcome {
        Outcome::Content(content) => {
            let is_same = content.stat.file_version.identity() == was;
            known[number].content = Some(content);
            if is_same || known[number].names.len() == 1 {
                return None;
            }
            // The name has another file now. Read the original file through its other names.
            let names = known[number].names.split_off(1);
            let next = known.len();
            for name in &names {
                at_mut(listings, *name).kind = EntryKind::File(next as u32);
            }
            known.push(Known { names, content: None });
            return Some(next);
        }
        Outcome::Replaced(stat_name) => *listed = ListedEntry::new(&listed.name, stat_name),
        Outcome::Gone => listed.kind = EntryKind::Gone,
        Outcome::Skipped => {
            for name in &known[number].names {
                at_mut(listings, *name).kind = EntryKind::Gone;
            }
            return None;
        }
    }
    known[number].names.remove(0);
    (!known[number].names.is_empty()).then_some(number)
}

/// Returns the path of a name.
pub(crate) fn path(listings: &Listings, (directory, nth): (u32, u32)) -> Vec<u8> {
    let listing = listings[directory as usize].as_ref().expect("it has names, so that it is there");
    join(&listing.path, &listing.names[nth as usize].name)
}

/// Returns the entry of a name.
pub(crate) fn at(listings: &Listings, (directory, nth): (u32, u32)) -> &ListedEntry {
    let listing = listings[directory as usize].as_ref().expect("it has names, so that it is there");
    &listing.names[nth as usize]
}

fn at_mut(listings: &mut Listings, (directory, nth): (u32, u32)) -> &mut ListedEntry {
    let listing = listings[directory as usize].as_mut().expect("it has names, so that it is there");
    &mut listing.names[nth as usize]
}
