//! A client that says whatever a test has it say.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use super::common;
use super::server::Server;

pub(crate) const FIXED: u32 = 1;
pub(crate) const NO_ZEROES: u32 = 2;

pub(crate) const EXPORT_NAME: u32 = 1;
pub(crate) const ABORT: u32 = 2;
pub(crate) const LIST: u32 = 3;
pub(crate) const INFO: u32 = 6;
pub(crate) const GO: u32 = 7;
pub(crate) const STRUCTURED_REPLY: u32 = 8;
pub(crate) const LIST_META_CONTEXT: u32 = 9;
pub(crate) const SET_META_CONTEXT: u32 = 10;

pub(crate) const ACK: u32 = 1;
pub(crate) const META_CONTEXT: u32 = 4;
pub(crate) const UNSUPPORTED: u32 = (1 << 31) + 1;
pub(crate) const INVALID: u32 = (1 << 31) + 3;
pub(crate) const UNKNOWN: u32 = (1 << 31) + 6;
pub(crate) const TOO_BIG: u32 = (1 << 31) + 9;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

pub(crate) struct Client(pub(crate) UnixStream);

impl Client {
    /// Connects, and reads the greeting.
    pub(crate) fn connect(server: &Server) -> Self {
        let stream = UnixStream::connect(&server.socket).expect("the server listens");
        stream.set_read_timeout(Some(common::LIMIT)).expect("a socket has timeouts");
        let mut client = Self(stream);
        assert_eq!(client.take::<18>(), *b"NBDMAGICIHAVEOPT\0\x03");
        client
    }

    /// Connects, and offers what there is.
    pub(crate) fn haggle(server: &Server) -> Self {
        let mut client = Self::connect(server);
        client.send(&(FIXED | NO_ZEROES).to_be_bytes());
        client
    }

    /// Connects to an export, with simple replies.
    pub(crate) fn go(server: &Server, export: &str) -> Self {
        let mut client = Self::haggle(server);
        let replies = client.option(GO, &question(export, &[]));
        assert_eq!(replies.last().unwrap().0, ACK, "{replies:?}");
        client
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the server receives");
    }

    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).expect("the server sends");
        bytes
    }

    pub(crate) fn take_vec(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("the server sends");
        bytes
    }

    pub(crate) fn send_option(&mut self, number: u32, len: u32, data: &[u8]) {
        let head = [&b"IHAVEOPT"[..], &number.to_be_bytes(), &len.to_be_bytes()].concat();
        self.send(&[&head, data].concat());
    }

    /// Sends an option, and takes the replies until the last one.
    pub(crate) fn option(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(number, data.len() as u32, data);
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.take(), 0x0003_e889_0455_65a9_u64.to_be_bytes());
            assert_eq!(self.take(), number.to_be_bytes());
            let kind = u32::from_be_bytes(self.take());
            let len = u32::from_be_bytes(self.take());
            replies.push((kind, self.take_vec(len as usize)));
            if kind == ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    /// The type of the last reply.
    pub(crate) fn verdict(&mut self, number: u32, data: &[u8]) -> u32 {
        self.option(number, data).last().expect("there is a last one").0
    }

    pub(crate) fn request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, len: u32) {
        self.send(&request(command, flags, cookie, offset, len));
    }

    /// Takes the head of a simple reply to this cookie; returns the error.
    #[track_caller]
    pub(crate) fn error(&mut self, cookie: u64) -> u32 {
        assert_eq!(self.take(), 0x6744_6698_u32.to_be_bytes());
        let error = u32::from_be_bytes(self.take());
        assert_eq!(u64::from_be_bytes(self.take()), cookie);
        error
    }

    /// Takes a chunk of a structured reply: flags, type, and payload.
    pub(crate) fn chunk(&mut self, cookie: u64) -> (u16, u16, Vec<u8>) {
        assert_eq!(self.take(), 0x668e_33ef_u32.to_be_bytes());
        let (flags, kind) = (u16::from_be_bytes(self.take()), u16::from_be_bytes(self.take()));
        assert_eq!(u64::from_be_bytes(self.take()), cookie);
        let len = u32::from_be_bytes(self.take());
        (flags, kind, self.take_vec(len as usize))
    }

    /// Asserts that the server hangs up, and sends nothing more.
    #[track_caller]
    pub(crate) fn assert_hung_up(mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => assert!(rest.is_empty(), "{rest:?}"),
            // It didn't read all that we sent.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
    }
}

pub(crate) fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let (magic, kind) = (0x2560_9513_u32, u32::from(flags) << 16 | u32::from(command));
    let words = [magic.to_be_bytes(), kind.to_be_bytes()].concat();
    [&words[..], &cookie.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// The data of `INFO` and `GO`.
pub(crate) fn question(export: &str, questions: &[u16]) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend(export.as_bytes());
    data.extend((questions.len() as u16).to_be_bytes());
    data.extend(questions.iter().flat_map(|question| question.to_be_bytes()));
    data
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub(crate) fn queries(export: &str, queries: &[&str]) -> Vec<u8> {
    let string = |string: &str| [&(string.len() as u32).to_be_bytes()[..], string.as_bytes()].concat();
    let mut data = string(export);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}
