//! Detection of the written pages of a private mapping.
//!
//! The kernel reports each page in `/proc/self/pagemap`: a page that was written is no longer a
//! page of the file. A view can therefore be reused for the next message without unmapping it: only
//! written pages are discarded, and the others, usually all of them, stay in the page table.

use super::pages::{Pages, page_len, whole_pages};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The page belongs to a file or to shared memory.
const OF_FILE: u64 = 1 << 61;
/// The page is swapped out or is being migrated.
const SWAPPED: u64 = 1 << 62;
/// The page is in memory.
const PRESENT: u64 = 1 << 63;

/// Pages described by one read.
const BATCH: usize = 1024;
/// Maximum number of clean pages between written ones that are discarded together with them.
///
/// The kernel maps this many pages around a page that is touched, so discarding them costs nothing
/// and saves system calls.
const GAP: usize = 16;

/// The open page map of this process.
#[derive(Debug)]
pub(super) struct PageMap {
    /// `None` if `/proc` does not provide it.
    file: Option<File>,
}

impl PageMap {
    /// Opens the page map of this process; after a fork it is still the page map of the parent.
    pub(super) fn open() -> Self {
        Self { file: File::open("/proc/self/pagemap").ok() }
    }

    /// Discards the written pages in `range` of a private mapping.
    pub(super) fn wipe(&self, pages: &Pages, range: &Range<usize>) -> io::Result<()> {
        let page = page_len();
        let mut run: Option<Range<usize>> = None;
        let is_known = self.each_written(pages, range, |at| {
            match &mut run {
                Some(run) if at <= run.end + GAP * page => run.end = at + page,
                _ => {
                    if let Some(run) = run.replace(at..at + page) {
                        pages.discard(&run)?;
                    }
                }
            }
            Ok(())
        })?;
        match run {
            _ if !is_known => pages.discard(range),
            Some(run) => pages.discard(&run),
            None => Ok(()),
        }
    }

    /// Whether `range` of a private mapping is known to show the file, because no page was written.
    pub(super) fn is_clean(&self, pages: &Pages, range: &Range<usize>) -> bool {
        let found = self.each_written(pages, range, |_| Err(io::ErrorKind::AlreadyExists.into()));
        found.unwrap_or(false)
    }

    /// Calls `found` with the offset of every written page, in order, until it fails.
    ///
    /// Returns `false` if the kernel does not report all pages; `found` may then have been called
    /// for some of them.
    fn each_written(
        &self,
        pages: &Pages,
        range: &Range<usize>,
        mut found: impl FnMut(usize) -> io::Result<()>,
    ) -> io::Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        let page = page_len();
        let range = whole_pages(range);
        let mut entries = [0; BATCH * size_of::<u64>()];
        for batch in range.clone().step_by(BATCH * page) {
            let count = BATCH.min((range.end - batch) / page);
            let entries = &mut entries[..count * size_of::<u64>()];
            let number = (pages.at(batch).as_ptr() as usize / page) as u64;
            if file.read_exact_at(entries, number * size_of::<u64>() as u64).is_err() {
                return Ok(false);
            }
            written(entries).try_for_each(|index| found(batch + index * page))?;
        }
        Ok(true)
    }
}

/// Returns the indexes of the entries of written pages.
fn written(entries: &[u8]) -> impl Iterator<Item = usize> {
    let entries = entries.as_chunks().0.iter().copied().map(u64::from_ne_bytes);
    entries
        .enumerate()
        .filter(|(_, entry)| entry & OF_FILE == 0 && entry & (PRESENT | SWAPPED) != 0)
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::super::copy::Copier;
    use super::super::memory::Memory;
    use super::super::pages::{Pages, Sharing, page_len};
    use super::PageMap;
    use std::os::fd::AsFd;

    const LEN: usize = 5 << 20;

    /// Creates a segment that is filled with ones, and a private view of it.
    fn segment() -> (Memory, Pages) {
        let mut memory = Memory::create(LEN).expect("there is memory");
        fill(&mut memory, 1);
        let view =
            Pages::map(memory.fd().as_fd(), LEN, Sharing::Private).expect("it can be mapped");
        (memory, view)
    }

    fn fill(memory: &mut Memory, byte: u8) {
        memory.fill(&[(0, &vec![byte; LEN])], &Copier::new(1)).expect("there is memory");
    }

    fn write(view: &mut Pages, offset: usize, byte: u8) {
        view.write(&[(offset, &[byte])], &Copier::new(1));
    }

    /// Returns the first byte of every page.
    fn heads(view: &Pages) -> Vec<u8> {
        let head = |offset| view.byte_at(offset);
        (0..LEN).step_by(page_len()).map(head).collect()
    }

    fn check_wipe(pagemap: &PageMap) {
        let page = page_len();
        for stride in [1, 2, 3, 17, 18, 40, 1024] {
            let (mut memory, mut view) = segment();
            (0..LEN).step_by(stride * page).for_each(|offset| write(&mut view, offset, 9));
            pagemap.wipe(&view, &(0..LEN)).expect("the kernel discards pages");
            fill(&mut memory, 2);
            assert!(heads(&view).iter().all(|byte| *byte == 2), "every page {stride}");
        }
    }

    #[test]
    fn written_pages_are_found_and_discarded() {
        let pagemap = PageMap::open();
        assert!(pagemap.file.is_some(), "the test is about the page map");
        check_wipe(&pagemap);
    }

    #[test]
    fn only_a_range_without_written_pages_is_clean() {
        let (_memory, mut view) = segment();
        let (pagemap, page) = (PageMap::open(), page_len());
        assert!(pagemap.is_clean(&view, &(0..LEN)), "never touched");
        heads(&view);
        assert!(pagemap.is_clean(&view, &(0..LEN)), "only read");
        write(&mut view, 7 * page + 5, 9);
        assert!(!pagemap.is_clean(&view, &(0..LEN)));
        assert!(!pagemap.is_clean(&view, &(8 * page - 1..LEN)), "the page is, not the bytes");
        assert!(pagemap.is_clean(&view, &(0..7 * page)));
        assert!(pagemap.is_clean(&view, &(8 * page..LEN)));
        pagemap.wipe(&view, &(0..LEN)).expect("the kernel discards pages");
        assert!(pagemap.is_clean(&view, &(0..LEN)));
        view.populate_write(&(0..LEN)).expect("there is memory");
        assert!(!pagemap.is_clean(&view, &(0..LEN)), "what is owned no longer shows the file");
        assert!(!PageMap { file: None }.is_clean(&segment().1, &(0..LEN)), "who knows?");
    }

    #[test]
    fn without_a_page_map_all_pages_are_discarded() {
        check_wipe(&PageMap { file: None });
    }

    #[test]
    fn pages_outside_the_range_are_left_alone() {
        let (mut memory, mut view) = segment();
        let page = page_len();
        [0, 7 * page, 100 * page].into_iter().for_each(|offset| write(&mut view, offset, 9));
        PageMap::open().wipe(&view, &(5 * page + 1..9 * page)).expect("the kernel discards pages");
        fill(&mut memory, 2);
        let heads = heads(&view);
        assert_eq!((heads[0], heads[7], heads[100], heads[101]), (9, 2, 9, 2));
    }

    #[test]
    fn owned_pages_stay_as_they_are() {
        for own_pages in [
            |view: &Pages| view.populate_write(&(0..LEN)).expect("there is memory"),
            |view: &Pages| {
                view.touch(&(0..LEN));
            },
        ] {
            let (mut memory, mut view) = segment();
            write(&mut view, 0, 9);
            own_pages(&view);
            fill(&mut memory, 2);
            let heads = heads(&view);
            assert!(heads[0] == 9 && heads[1..].iter().all(|byte| *byte == 1));
        }
    }
}
