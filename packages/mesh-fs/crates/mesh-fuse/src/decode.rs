//! Decoding of the kernel's requests.

use crate::abi::{self, opcode};
use crate::file_system::Seek;

/// A request.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// Id that the reply must contain.
    pub(crate) id: u64,
    /// Inode number of the file.
    pub(crate) ino: u64,
    pub(crate) operation: Operation<'a>,
}

/// The requested operation.
#[derive(Debug)]
pub(crate) enum Operation<'a> {
    Init(Offer),
    Lookup(&'a [u8]),
    Forget(u64),
    ForgetMany(Forgets<'a>),
    Attributes,
    ReadLink,
    Open,
    OpenDirectory,
    Read {
        offset: u64,
        len: u32,
    },
    ReadDirectory {
        offset: u64,
        len: u32,
        with_entries: bool,
    },
    Xattr {
        name: &'a [u8],
        len_max: u32,
    },
    XattrNames {
        len_max: u32,
    },
    Space,
    Seek {
        offset: u64,
        whence: Option<Seek>,
    },
    Interrupt(u64),
    /// An operation that needs no action.
    Nothing,
    /// An operation that would modify files.
    Write,
    /// A message without a reply.
    Remark,
    Unknown,
}

impl Operation<'_> {
    /// Returns whether the kernel expects a reply.
    pub(crate) fn wants_reply(&self) -> bool {
        use Operation::{Forget, ForgetMany, Interrupt, Remark};
        !matches!(self, Forget(_) | ForgetMany(_) | Interrupt(_) | Remark)
    }
}

/// Version and features of the kernel, which it reports when a mount is initialized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) features: u32,
}

/// Inode numbers that the kernel forgets, each with the number of lookups.
#[derive(Debug)]
pub(crate) struct Forgets<'a> {
    pairs: &'a [u8],
}

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let mut fields = Fields(self.pairs);
        let pair = (fields.u64()?, fields.u64()?);
        self.pairs = fields.0;
        Some(pair)
    }
}

/// A request with invalid content.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// Id for the reply, if the kernel expects one.
    pub(crate) id: Option<u64>,
}

/// Decodes a request.
pub(crate) fn decode(bytes: &[u8]) -> Result<Request<'_>, Malformed> {
    let header = header(bytes).ok_or(Malformed { id: None })?;
    let Header { opcode, id, ino, body } = header;
    let answerable = !matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT);
    let malformed = Malformed { id: answerable.then_some(id) };
    let body = body.ok_or(Malformed { id: malformed.id })?;
    let operation = operation(opcode, body).ok_or(malformed)?;
    Ok(Request { id, ino, operation })
}

struct Header<'a> {
    opcode: u32,
    id: u64,
    ino: u64,
    /// `None` if the lengths are inconsistent.
    body: Option<&'a [u8]>,
}

fn header(bytes: &[u8]) -> Option<Header<'_>> {
    let mut fields = Fields(bytes);
    let len = fields.u32()? as usize;
    let opcode = fields.u32()?;
    let (id, ino) = (fields.u64()?, fields.u64()?);
    let _owner_and_process = (fields.u64()?, fields.u32()?);
    // Extensions are at the end; their length is in units of eight bytes.
    let extensions_len = 8 * usize::from(fields.u16()?);
    let _padding = fields.u16()?;
    let end = len.checked_sub(extensions_len);
    let body = end.and_then(|end| bytes.get(abi::REQUEST_HEADER_LEN..end));
    Some(Header { opcode, id, ino, body })
}

fn operation(opcode: u32, body: &[u8]) -> Option<Operation<'_>> {
    let mut fields = Fields(body);
    Some(match opcode {
        opcode::INIT => Operation::Init(offer(&mut fields)?),
        opcode::LOOKUP => Operation::Lookup(fields.name()?),
        opcode::FORGET => Operation::Forget(fields.u64()?),
        opcode::BATCH_FORGET => Operation::ForgetMany(forgets(&mut fields)?),
        opcode::GETATTR => Operation::Attributes,
        opcode::READLINK => Operation::ReadLink,
        opcode::OPEN => Operation::Open,
        opcode::OPENDIR => Operation::OpenDirectory,
        opcode::READ => {
            let (offset, len) = range(&mut fields)?;
            Operation::Read { offset, len }
        }
        opcode::READDIR | opcode::READDIRPLUS => {
            let (offset, len) = range(&mut fields)?;
            let with_entries = opcode == opcode::READDIRPLUS;
            Operation::ReadDirectory { offset, len, with_entries }
        }
        opcode::GETXATTR => {
            let (len_max, _padding) = (fields.u32()?, fields.u32()?);
            Operation::Xattr { name: fields.name()?, len_max }
        }
        opcode::LISTXATTR => Operation::XattrNames { len_max: fields.u32()? },
        opcode::STATFS => Operation::Space,
        opcode::LSEEK => seek(&mut fields)?,
        opcode::INTERRUPT => Operation::Interrupt(fields.u64()?),
        opcode::RELEASE
        | opcode::RELEASEDIR
        | opcode::FSYNC
        | opcode::FSYNCDIR
        | opcode::DESTROY => Operation::Nothing,
        opcode::NOTIFY_REPLY => Operation::Remark,
        opcode if would_write(opcode) => Operation::Write,
        _ => Operation::Unknown,
    })
}

fn would_write(opcode: u32) -> bool {
    use opcode::{
        COPY_FILE_RANGE, CREATE, FALLOCATE, LINK, MKDIR, MKNOD, REMOVEXATTR, RENAME, RENAME2,
        RMDIR, SETATTR, SETXATTR, SYMLINK, TMPFILE, UNLINK, WRITE,
    };
    [
        COPY_FILE_RANGE,
        CREATE,
        FALLOCATE,
        LINK,
        MKDIR,
        MKNOD,
        REMOVEXATTR,
        RENAME,
        RENAME2,
        RMDIR,
        SETATTR,
        SETXATTR,
        SYMLINK,
        TMPFILE,
        UNLINK,
        WRITE,
    ]
    .contains(&opcode)
}

fn offer(fields: &mut Fields<'_>) -> Option<Offer> {
    let (major, minor) = (fields.u32()?, fields.u32()?);
    // An older kernel sends no more fields.
    let _read_ahead = fields.u32();
    let features = fields.u32().unwrap_or(0);
    Some(Offer { major, minor, features })
}

fn forgets<'a>(fields: &mut Fields<'a>) -> Option<Forgets<'a>> {
    let (count, _padding) = (fields.u32()?, fields.u32()?);
    let pairs = fields.0.get(..(count as usize).checked_mul(16)?)?;
    Some(Forgets { pairs })
}

/// Decodes an offset and a maximum length.
fn range(fields: &mut Fields<'_>) -> Option<(u64, u32)> {
    let _handle = fields.u64()?;
    Some((fields.u64()?, fields.u32()?))
}

fn seek<'a>(fields: &mut Fields<'_>) -> Option<Operation<'a>> {
    let _handle = fields.u64()?;
    let offset = fields.u64()?;
    let whence = match fields.u32()? {
        abi::SEEK_DATA => Some(Seek::Data),
        abi::SEEK_HOLE => Some(Seek::Hole),
        _ => None,
    };
    Some(Operation::Seek { offset, whence })
}

/// Consecutive numbers in native byte order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    /// Takes a name that ends with a zero byte.
    fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        (!name.is_empty()).then_some(name)
    }
}
