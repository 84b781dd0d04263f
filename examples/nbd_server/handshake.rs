//! The first phase of a connection: server and client agree on an export, and on how they talk.

use std::io::{self, Write};
use std::sync::Arc;

use aioco::fd::Parked;
use socket2::Socket;

use crate::ending::Ending;
use crate::export::{self, Export};
use crate::protocol::{
    Fields, MAX_STRING, OPTION_MAGIC, OPTION_REPLY_MAGIC, SERVER_MAGIC, allocation, handshake_flag, info, option,
    option_reply,
};
use crate::receiver::Receiver;

/// The most data of an option that is looked at: a name, and more questions than there are.
const MAX_DATA: usize = MAX_STRING + 4096;

/// The most data of an option that is received, to answer that it is too much.
const MAX_SKIPPED: usize = 1 << 20;

/// What was agreed on.
pub struct Agreement {
    pub export: Arc<Export>,
    pub structured: bool,
    /// Whether the client may ask where there are holes.
    pub allocation: bool,
}

/// Haggles until there is an agreement.
pub fn negotiate(exports: &[Arc<Export>], socket: &Parked<Socket>, input: &mut Receiver) -> Result<Agreement, Ending> {
    let mut greeting = Vec::with_capacity(18);
    greeting.extend(SERVER_MAGIC.to_be_bytes());
    greeting.extend(OPTION_MAGIC.to_be_bytes());
    let ours = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    greeting.extend(ours.to_be_bytes());
    (&*socket).write_all(&greeting)?;

    let Some(flags) = input.message(Parked::readable)? else { return Err(Ending::Orderly) };
    let flags = u32::from_be_bytes(flags);
    if flags & !u32::from(ours) != 0 {
        return Err(Ending::offence(format!("the client wants {flags:#x} of the handshake, which wasn't offered")));
    }
    let no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
    Haggling { exports, socket, input, no_zeroes, structured: false, allocation_of: None }.run()
}

struct Haggling<'a> {
    exports: &'a [Arc<Export>],
    socket: &'a Parked<Socket>,
    input: &'a mut Receiver,
    no_zeroes: bool,
    structured: bool,
    /// The export for which the client wants to know about holes.
    allocation_of: Option<Arc<Export>>,
}

impl Haggling<'_> {
    fn run(&mut self) -> Result<Agreement, Ending> {
        loop {
            let Some(magic) = self.input.message(Parked::readable)? else { return Err(Ending::Orderly) };
            let magic = u64::from_be_bytes(magic);
            if magic != OPTION_MAGIC {
                return Err(Ending::offence(format!("{magic:#018x} isn't how an option begins")));
            }
            let number = u32::from_be_bytes(self.input.expect()?);
            let len = u32::from_be_bytes(self.input.expect()?) as usize;
            if len > MAX_SKIPPED {
                return Err(Ending::offence(format!("option {number} has {len} bytes of data")));
            }
            if let Some(export) = self.option(number, len)? {
                let allocation = self.allocation_of.as_ref().is_some_and(|of| Arc::ptr_eq(of, &export));
                return Ok(Agreement { export, structured: self.structured, allocation });
            }
        }
    }

    /// Answers an option; returns the export if that ends the handshake.
    fn option(&mut self, number: u32, len: usize) -> Result<Option<Arc<Export>>, Ending> {
        if number == option::SET_META_CONTEXT {
            // Whatever comes of it.
            self.allocation_of = None;
        }
        match number {
            option::EXPORT_NAME if len <= MAX_STRING => return self.export_name(len).map(Some),
            option::EXPORT_NAME => return Err(Ending::offence(format!("an export's name has {len} bytes"))),
            option::INFO | option::GO if len <= MAX_DATA => {
                let data = self.data(len)?;
                let export = self.inform(number, &data)?;
                return Ok(export.filter(|_| number == option::GO));
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT if len <= MAX_DATA => {
                let data = self.data(len)?;
                self.contexts(number, &data)?;
                return Ok(None);
            }
            _ => self.input.skip(len)?,
        }
        match number {
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.refuse(number, option_reply::TOO_BIG, "so many questions aren't looked at")?;
            }
            option::INFO | option::GO => {
                self.refuse(number, option_reply::TOO_BIG, "a name of an export has at most 4096 bytes")?;
            }
            option::ABORT => {
                // It may be gone already.
                let _ = self.reply(number, option_reply::ACK, &[]);
                return Err(Ending::Orderly);
            }
            option::LIST | option::STRUCTURED_REPLY if len > 0 => {
                self.refuse(number, option_reply::INVALID, "this option has no data")?;
            }
            option::LIST => self.list()?,
            option::STRUCTURED_REPLY => {
                self.structured = true;
                self.reply(number, option_reply::ACK, &[])?;
            }
            _ => {
                crate::log::note(format_args!("a client asks for option {number}, which is unknown here"));
                self.refuse(number, option_reply::UNSUPPORTED, "unknown option")?;
            }
        }
        Ok(None)
    }

    /// Ends the handshake in the old way, in which there are no errors but to hang up.
    fn export_name(&mut self, len: usize) -> Result<Arc<Export>, Ending> {
        let name = self.data(len)?;
        let Some(export) = export::find(self.exports, &name) else {
            return Err(Ending::offence(format!("there is no export {:?}", String::from_utf8_lossy(&name))));
        };
        let mut answer = Vec::new();
        answer.extend(export.size.to_be_bytes());
        answer.extend(export.flags().to_be_bytes());
        answer.resize(answer.len() + if self.no_zeroes { 0 } else { 124 }, 0);
        self.send(&answer)?;
        Ok(export.clone())
    }

    fn list(&mut self) -> Result<(), Ending> {
        for export in self.exports {
            let mut data = Vec::new();
            data.extend((export.name.len() as u32).to_be_bytes());
            data.extend(export.name.as_bytes());
            self.reply(option::LIST, option_reply::SERVER, &data)?;
        }
        Ok(self.reply(option::LIST, option_reply::ACK, &[])?)
    }

    /// Answers questions about an export; returns it, if all went well.
    fn inform(&mut self, number: u32, data: &[u8]) -> Result<Option<Arc<Export>>, Ending> {
        let Some((name, questions)) = parse_questions(data) else {
            self.refuse(number, option_reply::INVALID, "lengths that don't fit together")?;
            return Ok(None);
        };
        let Some(export) = export::find(self.exports, name) else {
            crate::log::note(format_args!("a client asks for {:?}, which isn't here", String::from_utf8_lossy(name)));
            self.refuse(number, option_reply::UNKNOWN, "no export has this name")?;
            return Ok(None);
        };
        let mut about = Vec::new();
        about.extend(info::EXPORT.to_be_bytes());
        about.extend(export.size.to_be_bytes());
        about.extend(export.flags().to_be_bytes());
        self.reply(number, option_reply::INFO, &about)?;
        let asks = |what: u16| questions.chunks_exact(2).any(|question| question == what.to_be_bytes());
        if asks(info::NAME) {
            let name = [&info::NAME.to_be_bytes()[..], export.name.as_bytes()].concat();
            self.reply(number, option_reply::INFO, &name)?;
        }
        if asks(info::BLOCK_SIZE) {
            let sizes = export.block_sizes;
            let sizes = [sizes.minimum, sizes.preferred, sizes.maximum].map(u32::to_be_bytes).concat();
            self.reply(number, option_reply::INFO, &[&info::BLOCK_SIZE.to_be_bytes()[..], &sizes].concat())?;
        }
        self.reply(number, option_reply::ACK, &[])?;
        Ok(Some(export.clone()))
    }

    /// Answers who asks which metadata contexts there are, or chooses some.
    fn contexts(&mut self, number: u32, data: &[u8]) -> Result<(), Ending> {
        if !self.structured {
            return Ok(self.refuse(
                number,
                option_reply::INVALID,
                "only those with structured replies have a use for it",
            )?);
        }
        let Some((name, queries)) = parse_queries(data) else {
            return Ok(self.refuse(number, option_reply::INVALID, "lengths that don't fit together")?);
        };
        let Some(export) = export::find(self.exports, name) else {
            return Ok(self.refuse(number, option_reply::UNKNOWN, "no export has this name")?);
        };
        let is_choice = number == option::SET_META_CONTEXT;
        let asks_for_it = match is_choice {
            true => queries.contains(&allocation::NAME),
            false => {
                let is_it = |&query: &&[u8]| query == allocation::NAME || query == allocation::NAMESPACE;
                queries.is_empty() || queries.iter().any(is_it)
            }
        };
        if asks_for_it {
            let id = if is_choice { allocation::ID } else { 0 };
            self.reply(number, option_reply::META_CONTEXT, &[&id.to_be_bytes()[..], allocation::NAME].concat())?;
            if is_choice {
                self.allocation_of = Some(export.clone());
            }
        }
        Ok(self.reply(number, option_reply::ACK, &[])?)
    }

    fn data(&mut self, len: usize) -> Result<Vec<u8>, Ending> {
        let mut data = vec![0; len];
        self.input.read_exact(&mut data)?;
        Ok(data)
    }

    fn refuse(&mut self, number: u32, error: u32, reason: &str) -> io::Result<()> {
        self.reply(number, error, reason.as_bytes())
    }

    fn reply(&mut self, number: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let mut reply = Vec::with_capacity(20 + data.len());
        reply.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        reply.extend(number.to_be_bytes());
        reply.extend(kind.to_be_bytes());
        reply.extend((data.len() as u32).to_be_bytes());
        reply.extend(data);
        self.send(&reply)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        (&*self.socket).write_all(bytes)
    }
}

/// The name, and the questions, two bytes each. `None` if the data isn't made like that.
fn parse_questions(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = usize::from(fields.u16()?);
    let questions = fields.bytes(2 * count)?;
    fields.0.is_empty().then_some((name, questions))
}

/// The name of an export, and the queries. `None` if the data isn't made like that.
fn parse_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    // As many as are there, whatever their number is said to be.
    let queries = (0..count).map(|_| fields.string()).collect::<Option<Vec<_>>>()?;
    fields.0.is_empty().then_some((name, queries))
}

#[cfg(test)]
mod tests {
    use super::{parse_queries, parse_questions};

    #[test]
    fn queries() {
        let parsed = parse_queries(b"\0\0\0\x02ab\0\0\0\x02\0\0\0\x01c\0\0\0\0");
        assert_eq!(parsed, Some((&b"ab"[..], vec![&b"c"[..], b""])));
        assert_eq!(parse_queries(b"\0\0\0\0\0\0\0\0"), Some((&b""[..], vec![])));
        let wrong: [&[u8]; 5] = [
            b"",
            b"\0\0\0\0",
            b"\0\0\0\0\xff\xff\xff\xff",
            b"\0\0\0\0\0\0\0\x01\xff\xff\xff\xffa",
            b"\0\0\0\0\0\0\0\0\0",
        ];
        for data in wrong {
            assert_eq!(parse_queries(data), None, "{data:?}");
        }
    }

    #[test]
    fn questions() {
        assert_eq!(parse_questions(b"\0\0\0\x02ab\0\x01\0\x03"), Some((&b"ab"[..], &b"\0\x03"[..])));
        assert_eq!(parse_questions(b"\0\0\0\0\0\0"), Some((&b""[..], &b""[..])));
        let wrong: [&[u8]; 6] =
            [b"", b"\0\0\0\x03ab\0\0", b"\xff\xff\xff\xff\0\0", b"\0\0\0\0", b"\0\0\0\0\0\x01\0", b"\0\0\0\0\0\0\0"];
        for data in wrong {
            assert_eq!(parse_questions(data), None, "{data:?}");
        }
    }
}
