//! What goes over the wire: the numbers and layouts of the NBD protocol, fixed newstyle, as its public text has them
//! (github.com/NetworkBlockDevice/nbd, doc/proto.md). All numbers are big endian.

use std::borrow::Cow;
use std::io;

use crate::buffers::Lease;
use crate::extents::Extent;

/// What a server says first: "NBDMAGIC".
pub const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// What it says next, and a client before each option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// A string may have so many bytes.
pub const MAX_STRING: usize = 4096;

/// A client that hasn't been told of a limit may send and ask for so many bytes at once.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// Flags of the handshake, the same bits from server and client.
pub mod handshake_flag {
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// What an export can do.
pub mod transmission_flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod option_reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const UNSUPPORTED: u32 = (1 << 31) + 1;
    pub const INVALID: u32 = (1 << 31) + 3;
    pub const UNKNOWN: u32 = (1 << 31) + 6;
    pub const TOO_BIG: u32 = (1 << 31) + 9;
}

/// What a client asks about an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const BLOCK_SIZE: u16 = 3;
}

pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

pub mod command_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DONT_FRAGMENT: u16 = 1 << 2;
    pub const REQUEST_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// The one metadata context there is: where an export has holes.
pub mod allocation {
    /// The part of its name before the colon.
    pub const NAMESPACE: &[u8] = b"base:";
    pub const NAME: &[u8] = b"base:allocation";
    /// What the server calls it.
    pub const ID: u32 = 1;
    /// Of an extent: nothing is allocated for it, and it reads as zeroes.
    pub const HOLE: u32 = 1 << 0;
    pub const ZERO: u32 = 1 << 1;
}

const CHUNK_DONE: u16 = 1 << 0;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_BLOCK_STATUS: u16 = 5;
const CHUNK_ERROR: u16 = (1 << 15) + 1;

/// The errors that the protocol knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    NotPermitted = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    Overflow = 75,
    NotSupported = 95,
    Shutdown = 108,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub errno: Errno,
    /// For people, if the client takes it.
    pub reason: Cow<'static, str>,
}

impl Failure {
    pub fn new(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, reason: reason.into() }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let errno = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Errno::NoSpace,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Errno::NotPermitted,
            io::ErrorKind::InvalidInput => Errno::Invalid,
            _ => Errno::Io,
        };
        Self::new(errno, error.to_string())
    }
}

/// A request, without the payload of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub len: u32,
}

impl Request {
    pub const LEN: usize = 28;

    /// The request; or what is in the place of its magic number.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, u32> {
        let mut fields = Fields(bytes);
        let mut next = || fields.u32().expect("the array is that long");
        match next() {
            REQUEST_MAGIC => {}
            other => return Err(other),
        }
        let kind = next();
        let mut long = || u64::from(next()) << 32 | u64::from(next());
        Ok(Self { flags: (kind >> 16) as u16, command: kind as u16, cookie: long(), offset: long(), len: next() })
    }

    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Takes numbers and strings off a message.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }

    /// A length, and so many bytes.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > MAX_STRING { None } else { self.bytes(len) }
    }
}

/// A reply: its head, and what follows that.
pub struct Reply {
    head: [u8; Self::MAX_HEAD],
    head_len: u8,
    payload: Payload,
}

enum Payload {
    Nothing,
    Data(Lease),
    Text(Cow<'static, str>),
    Extents(Vec<u8>),
}

impl Reply {
    const MAX_HEAD: usize = 28;

    /// A simple reply without data: success of what isn't a read.
    pub fn done(cookie: u64) -> Self {
        Self::simple(cookie, 0, Payload::Nothing)
    }

    /// What has been read at an offset.
    pub fn data(cookie: u64, offset: u64, data: Lease, structured: bool) -> Self {
        if !structured {
            return Self::simple(cookie, 0, Payload::Data(data));
        }
        let mut reply = Self::chunk(CHUNK_OFFSET_DATA, cookie, 8 + data.len() as u32);
        reply.append(&offset.to_be_bytes());
        reply.payload = Payload::Data(data);
        reply
    }

    /// What is a hole, and what isn't. Always structured.
    pub fn extents(cookie: u64, extents: &[Extent]) -> Self {
        let descriptor = |extent: &Extent| {
            let state = if extent.is_hole { allocation::HOLE | allocation::ZERO } else { 0 };
            [extent.len, state]
        };
        let bytes: Vec<u8> = extents.iter().flat_map(descriptor).flat_map(u32::to_be_bytes).collect();
        let mut reply = Self::chunk(CHUNK_BLOCK_STATUS, cookie, 4 + bytes.len() as u32);
        reply.append(&allocation::ID.to_be_bytes());
        reply.payload = Payload::Extents(bytes);
        reply
    }

    pub fn failure(cookie: u64, failure: Failure, structured: bool) -> Self {
        let Failure { errno, mut reason } = failure;
        if !structured {
            return Self::simple(cookie, errno as u32, Payload::Nothing);
        }
        if reason.len() > MAX_STRING {
            reason = reason.chars().take(MAX_STRING / 4).collect();
        }
        let mut reply = Self::chunk(CHUNK_ERROR, cookie, 6 + reason.len() as u32);
        reply.append(&(errno as u32).to_be_bytes());
        reply.append(&(reason.len() as u16).to_be_bytes());
        reply.payload = Payload::Text(reason);
        reply
    }

    /// Its parts, in order; the second may be empty.
    pub fn parts(&self) -> [&[u8]; 2] {
        let payload = match &self.payload {
            Payload::Nothing => &[][..],
            Payload::Data(data) => data,
            Payload::Text(text) => text.as_bytes(),
            Payload::Extents(extents) => extents,
        };
        [&self.head[..self.head_len.into()], payload]
    }

    fn simple(cookie: u64, errno: u32, payload: Payload) -> Self {
        let mut reply = Self { head: [0; Self::MAX_HEAD], head_len: 0, payload };
        reply.append(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        reply.append(&errno.to_be_bytes());
        reply.append(&cookie.to_be_bytes());
        reply
    }

    /// The only chunk of a structured reply.
    fn chunk(kind: u16, cookie: u64, len: u32) -> Self {
        let mut reply = Self { head: [0; Self::MAX_HEAD], head_len: 0, payload: Payload::Nothing };
        reply.append(&CHUNK_MAGIC.to_be_bytes());
        reply.append(&CHUNK_DONE.to_be_bytes());
        reply.append(&kind.to_be_bytes());
        reply.append(&cookie.to_be_bytes());
        reply.append(&len.to_be_bytes());
        reply
    }

    fn append(&mut self, bytes: &[u8]) {
        let start = usize::from(self.head_len);
        self.head[start..start + bytes.len()].copy_from_slice(bytes);
        self.head_len += bytes.len() as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let mut bytes = [0; Request::LEN];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&[0, 3, 0, 6]);
        bytes[15] = 7;
        bytes[16..24].copy_from_slice(&(1u64 << 40 | 5).to_be_bytes());
        bytes[24..].copy_from_slice(&4096u32.to_be_bytes());
        let request = Request::parse(&bytes).unwrap();
        assert_eq!(
            request,
            Request { flags: 3, command: command::WRITE_ZEROES, cookie: 7, offset: 1 << 40 | 5, len: 4096 }
        );
        assert!(request.has(command_flag::FUA) && !request.has(command_flag::FAST_ZERO));
        bytes[0] = 0xff;
        assert_eq!(Request::parse(&bytes), Err(0xff60_9513));
    }

    #[test]
    fn fields_end() {
        let mut fields = Fields(&[0, 1, 0, 0, 0, 2, b'a']);
        assert_eq!((fields.u16(), fields.u32()), (Some(1), Some(2)));
        assert_eq!((fields.u16(), fields.bytes(2)), (None, None));
        assert_eq!((fields.bytes(1), fields.bytes(1)), (Some(&b"a"[..]), None));
    }

    #[test]
    fn extents_are_told() {
        let extents = [Extent { len: 4096, is_hole: false }, Extent { len: 1 << 20, is_hole: true }];
        let reply = Reply::extents(9, &extents);
        let [head, payload] = reply.parts();
        assert_eq!(head[..8], *b"\x66\x8e\x33\xef\0\x01\0\x05");
        assert_eq!(head[16..], [0, 0, 0, 20, 0, 0, 0, 1]);
        assert_eq!(payload, b"\0\0\x10\0\0\0\0\0\0\x10\0\0\0\0\0\x03");
    }

    #[test]
    fn failures_are_said_to_those_who_listen() {
        let failure = Failure::new(Errno::NoSpace, "full");
        let simple = Reply::failure(9, failure.clone(), false);
        assert_eq!(simple.parts(), [&b"\x67\x44\x66\x98\0\0\0\x1c\0\0\0\0\0\0\0\x09"[..], &[]]);
        let structured = Reply::failure(9, failure, true);
        let [head, text] = structured.parts();
        assert_eq!((head.len(), text), (26, &b"full"[..]));
        assert_eq!(head[..8], *b"\x66\x8e\x33\xef\0\x01\x80\x01");
        assert_eq!(head[16..], [0, 0, 0, 10, 0, 0, 0, 28, 0, 4]);
        let endless = Failure::new(Errno::Io, "ä".repeat(10_000));
        assert!(Reply::failure(9, endless, true).parts()[1].len() <= MAX_STRING);
    }
}
