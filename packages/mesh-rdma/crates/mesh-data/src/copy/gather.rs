//! Copies of rows of a buffer to local rows, over each transport.
#![expect(unsafe_code, reason = "copies memory by address")]

use crate::client::link::Link;
use crate::client::streams::Streams;
use crate::connection::frame::{Request, Verb};
use crate::copy::attach::{AttachedProcess, IOVEC_MAX};
use crate::copy::grid::{Grid, Row};
use crate::copy::target::{CHUNK_LEN, Direction, Path, Remote, Target, local_peer};
use crate::error::DataError;
use crate::span::Span;
use crate::stop::Stop;

/// The maximum gap between two rows for which reading it is faster than passing both rows to the
/// kernel.
const GAP_LEN_MAX: u64 = 1024;

impl Target {
    /// Copies `len` bytes of a grid, starting at byte `start` of the grid, to the local `buffer`.
    ///
    /// # Errors
    /// Nothing is written after this returns, regardless of the result.
    ///
    /// # Safety
    /// `buffer` is mapped for writing until this returns, and is as long as the grid requires.
    pub(crate) unsafe fn gather(
        &self,
        grid: &Grid,
        start: u64,
        len: u64,
        buffer: Span,
        offset: u64,
        stop: &Stop,
    ) -> Result<(), DataError> {
        let len = len.min(grid.len().saturating_sub(start));
        if grid.is_one_row() {
            let part = buffer.part(number(start), number(len)).expect("the buffer is long enough");
            // SAFETY: the caller guarantees it.
            return unsafe { self.copy(Direction::Read, part, offset + start, stop) };
        }
        self.check()?;
        self.check_range(offset, grid.from_len().unwrap_or(u64::MAX))?;
        stop.check()?;
        let rows = grid.rows(start, len);
        let Remote { slot, key, .. } = self.remote;
        match &self.path {
            Path::Memory(domain) => {
                let _use = domain.own.copying(slot);
                let span_len = grid.from_len().unwrap_or(u64::MAX);
                let theirs = domain.range(slot, key, offset, span_len, false)?;
                let check = || self.check_valid(domain.ledger().is_valid(slot, key));
                // SAFETY: the caller guarantees `buffer`; the registration keeps the source mapped.
                unsafe { copy_rows(rows, theirs, buffer, stop, check) }
            }
            Path::Arena(link, map) => {
                let shared = local_peer(link);
                let span_len = number(grid.from_len().unwrap_or(u64::MAX));
                let theirs = self.in_arena(map, offset, span_len)?;
                let _use = shared.cells.copying(slot);
                let check = || self.check_valid(shared.ledger.is_valid(slot, key));
                // SAFETY: the caller guarantees `buffer`; the map keeps the source mapped.
                unsafe { copy_rows(rows, theirs, buffer, stop, check) }?;
                link.check()?;
                check()
            }
            // SAFETY: the caller guarantees it.
            Path::Attach(link) => unsafe { self.attach_rows(link, rows, buffer, offset, stop) },
            Path::Unix(link) => {
                self.stream_rows(link, &link.unix, grid, start, len, buffer, offset, stop)
            }
            Path::Tcp(link) => {
                self.stream_rows(link, &link.tcp, grid, start, len, buffer, offset, stop)
            }
        }
    }

    /// # Safety
    /// As for [`Target::gather`].
    unsafe fn attach_rows(
        &self,
        link: &Link,
        rows: impl Iterator<Item = Row>,
        buffer: Span,
        offset: u64,
        stop: &Stop,
    ) -> Result<(), DataError> {
        let shared = local_peer(link);
        let Remote { slot, key, address, .. } = self.remote;
        let _use = shared.cells.copying(slot);
        let mut scratch = Vec::new();
        let result = in_batches(rows, |batch| {
            stop.check()?;
            self.check_valid(shared.ledger.is_valid(slot, key))?;
            let from = address.wrapping_add(offset);
            // SAFETY: the caller guarantees `buffer`; the sources are registered ranges, which the
            // cell protects.
            let (copied, wanted) = unsafe {
                match cover(batch) {
                    Some(len) => {
                        (read_cover(&shared.process, buffer, from, batch, len, &mut scratch), len)
                    }
                    None => {
                        let wanted = batch.iter().map(|row| row.len).sum();
                        (shared.process.read_rows(buffer, from, batch), wanted)
                    }
                }
            };
            match copied {
                Ok(copied) if copied as u64 == wanted => Ok(()),
                Ok(_) => Err(DataError::system("cannot attach all of the buffer")(
                    std::io::Error::from_raw_os_error(libc::EFAULT),
                )),
                Err(error) => Err(DataError::system("cannot attach the buffer")(error)),
            }
        });
        self.attached(link, result)
    }

    /// Validates attached memory: the process and the registration must still exist afterwards.
    pub(crate) fn attached(
        &self,
        link: &Link,
        result: Result<(), DataError>,
    ) -> Result<(), DataError> {
        let shared = local_peer(link);
        // The memory of a process is freed shortly before the system reports its exit.
        let has_no_memory = matches!(
            &result,
            Err(DataError::System { source, .. }) if source.raw_os_error() == Some(libc::ESRCH)
        );
        // This is checked last, because the pid of an exited process may be reused.
        if has_no_memory || shared.process.is_over() {
            link.mark_dead("it has ended");
        }
        link.check()?;
        result?;
        self.check_valid(shared.ledger.is_valid(self.remote.slot, self.remote.key))
    }

    #[expect(clippy::too_many_arguments, reason = "passed on from the one caller")]
    fn stream_rows(
        &self,
        link: &Link,
        streams: &Streams,
        grid: &Grid,
        start: u64,
        len: u64,
        buffer: Span,
        offset: u64,
        stop: &Stop,
    ) -> Result<(), DataError> {
        link.check()?;
        let Remote { slot, key, .. } = self.remote;
        let body = grid.encode();
        let request = Request {
            offset,
            length: body.len() as u64,
            operand: start,
            compare: len,
            ..Request::of(Verb::Gather, slot, key)
        };
        let stream = streams.acquire(stop)?;
        let mut rows = Scatter::new(grid.rows(start, len), buffer);
        // SAFETY: the bytes are written to `buffer`, which the caller guarantees.
        let put = |bytes: &[u8]| unsafe { rows.put(bytes) };
        match stream.gather(&request, &body, len, stop, put) {
            Ok(result) => {
                streams.release(stream);
                result
            }
            Err(error) => {
                let error = error.of(&link.descriptor.name);
                link.check()?;
                Err(error)
            }
        }
    }
}

/// # Safety
/// `to` is mapped for writing and `from` for reading, each as long as the rows require.
unsafe fn copy_rows(
    rows: impl Iterator<Item = Row>,
    from: Span,
    to: Span,
    stop: &Stop,
    check: impl Fn() -> Result<(), DataError>,
) -> Result<(), DataError> {
    check()?;
    let mut copied = 0;
    for row in rows {
        let mut row = row;
        while row.len > 0 {
            let len = row.len.min((CHUNK_LEN - copied) as u64);
            let theirs = Span { start: from.start + number(row.from), len: number(len) };
            let ours = Span { start: to.start + number(row.to), len: number(len) };
            // SAFETY: the caller guarantees both ranges.
            unsafe { ours.copy_from(theirs) };
            row = Row { from: row.from + len, to: row.to + len, len: row.len - len };
            copied += number(len);
            if copied == CHUNK_LEN {
                stop.check()?;
                check()?;
                copied = 0;
            }
        }
    }
    Ok(())
}

/// The number of bytes from the start of the first row to the end of the last one, if reading all
/// of them is faster than passing each row to the kernel.
fn cover(batch: &[Row]) -> Option<u64> {
    let (first, last) = (batch.first()?, batch.last()?);
    let is_ascending = batch.is_sorted_by(|one, next| one.from + one.len <= next.from);
    let len = (last.from + last.len).checked_sub(first.from).filter(|_| is_ascending)?;
    let wanted: u64 = batch.iter().map(|row| row.len).sum();
    (batch.len() > 1 && len - wanted <= GAP_LEN_MAX * (batch.len() as u64 - 1)).then_some(len)
}

/// Reads the range that covers the rows, and copies the rows; returns the number of bytes read.
///
/// # Safety
/// `buffer` is mapped for writing and as long as the rows require; the rows cover `len` bytes.
unsafe fn read_cover(
    process: &AttachedProcess,
    buffer: Span,
    from: u64,
    batch: &[Row],
    len: u64,
    scratch: &mut Vec<u8>,
) -> std::io::Result<usize> {
    let first = batch.first().map_or(0, |row| row.from);
    if scratch.len() < number(len) {
        scratch.resize(number(len), 0);
    }
    let all = Span { start: scratch.as_mut_ptr() as usize, len: number(len) };
    // SAFETY: `all` is the local scratch buffer.
    let read = unsafe { process.read(all, from + first) }?;
    if read == all.len {
        for row in batch {
            let to = Span { start: buffer.start + number(row.to), len: number(row.len) };
            let part = Span { start: all.start + number(row.from - first), len: to.len };
            // SAFETY: the caller guarantees `buffer`, and the part was just read.
            unsafe { to.copy_from(part) };
        }
    }
    Ok(read)
}

/// Passes rows to `copy` in batches, limited by the kernel's maximum and by the number of bytes.
fn in_batches(
    mut rows: impl Iterator<Item = Row>,
    mut copy: impl FnMut(&[Row]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut batch = Vec::with_capacity(IOVEC_MAX);
    loop {
        batch.clear();
        let mut len = 0;
        while batch.len() < IOVEC_MAX && len < CHUNK_LEN as u64 {
            let Some(row) = rows.next() else { break };
            len += row.len;
            batch.push(row);
        }
        if batch.is_empty() {
            return Ok(());
        }
        copy(&batch)?;
    }
}

/// Copies packed bytes to their rows.
struct Scatter<'a> {
    rows: crate::copy::grid::Rows<'a>,
    buffer: Span,
    row: Row,
}

impl<'a> Scatter<'a> {
    fn new(rows: crate::copy::grid::Rows<'a>, buffer: Span) -> Self {
        Self { rows, buffer, row: Row { from: 0, to: 0, len: 0 } }
    }

    /// # Safety
    /// `buffer` is mapped for writing and is as long as the rows require.
    unsafe fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.row.len == 0 {
                let Some(row) = self.rows.next() else { return };
                self.row = row;
            }
            let len = self.row.len.min(bytes.len() as u64);
            let (now, later) = bytes.split_at(number(len));
            let from = Span { start: now.as_ptr() as usize, len: now.len() };
            let to = Span { start: self.buffer.start + number(self.row.to), len: now.len() };
            // SAFETY: the caller guarantees `buffer`.
            unsafe { to.copy_from(from) };
            self.row = Row { from: 0, to: self.row.to + len, len: self.row.len - len };
            bytes = later;
        }
    }
}

/// Packs rows of memory of this process, at most `buffer.len()` bytes.
///
/// # Safety
/// The rows are within `from`, which is mapped.
pub(crate) unsafe fn pack(grid: &Grid, start: u64, from: Span, buffer: &mut [u8]) {
    let mut done = 0;
    for row in grid.rows(start, buffer.len() as u64) {
        let len = number(row.len);
        let to = Span { start: buffer[done..done + len].as_mut_ptr() as usize, len };
        // SAFETY: the caller guarantees the source, and the indexing has checked the bounds of
        // `buffer`.
        unsafe { to.copy_from(Span { start: from.start + number(row.from), len }) };
        done += len;
    }
}

/// Converts to a length in memory of this machine; a grid does not span more.
fn number(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
