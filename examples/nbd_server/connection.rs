//! A connection, from its first byte to its last.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::Shutdown;
use std::rc::Rc;
use std::sync::Arc;

use aioco::coroutine::Interest;
use aioco::fd::{self, Parked};
use aioco::yield_now;
use socket2::Socket;

use crate::buffers::{Buffers, Lease};
use crate::ending::Ending;
use crate::export::Export;
use crate::handshake::{self, Agreement};
use crate::limits::Limits;
use crate::log;
use crate::outbox::Outbox;
use crate::permits::{Permit, Permits};
use crate::protocol::{Errno, Failure, MAX_PAYLOAD, Reply, Request, command};
use crate::receiver::Receiver;
use crate::worker::Worker;

/// A client's payloads take at most so many bytes at a time; a longer one goes alone.
const CLIENT_BYTES: usize = 8 << 20;

/// When reads and writes of so many bytes have been started, they have their turn: while what is to be written is in the
/// caches, and what is read is sent. Those that have to wait for the disk don't keep others from starting.
const BATCH: usize = 32 << 10;

/// A connection as others see it.
pub struct Link {
    /// What it is called in the log.
    pub name: String,
    pub socket: Rc<Parked<Socket>>,
    is_stopping: Cell<bool>,
}

impl Link {
    pub fn new(name: String, socket: Parked<Socket>) -> Self {
        Self { name, socket: Rc::new(socket), is_stopping: Cell::new(false) }
    }

    /// Has it end when the requests that are in flight are answered.
    pub fn stop(&self) {
        self.is_stopping.set(true);
        // Who waits for a request sees the end of the stream.
        let _ = self.socket.get_ref().shutdown(Shutdown::Read);
    }

    /// Has it end without answers, if the client doesn't take them.
    pub fn cut(&self) {
        let _ = self.socket.get_ref().shutdown(Shutdown::Both);
    }
}

/// Serves a client until it leaves.
pub fn serve(worker: &Rc<Worker>, link: &Rc<Link>) {
    log::note(format_args!("{}: connected", link.name));
    let Err(ending) = talk(worker, link);
    // What goes wrong while we stop is our doing.
    if matches!(ending, Ending::Orderly) || link.is_stopping.get() {
        log::note(format_args!("{}: {ending}", link.name));
    } else {
        log::warn(format_args!("{}: {ending}", link.name));
    }
}

fn talk(worker: &Rc<Worker>, link: &Rc<Link>) -> Result<Infallible, Ending> {
    let Limits { patience, .. } = worker.limits;
    // Whatever is waited for has to come in time; but for requests (see `next_request`).
    link.socket.set_timeout(Interest::Readable, Some(patience.wait()));
    link.socket.set_timeout(Interest::Writable, Some(patience.wait()));
    let mut input = Receiver::new(link.socket.clone(), worker.buffers.clone(), patience);
    let agreement = handshake::negotiate(&worker.exports, &link.socket, &mut input)?;
    let session = Session::new(worker, link, agreement);
    let ending = session.run(&mut input);
    drop(input);
    session.requests.wait_for_all();
    ending
}

/// The second phase of a connection, in which there are requests.
struct Session {
    worker: Rc<Worker>,
    link: Rc<Link>,
    export: Arc<Export>,
    structured: bool,
    /// Whether the client may ask where there are holes.
    allocation: bool,
    outbox: Rc<Outbox>,
    /// Bounds the requests in flight.
    requests: Rc<Permits>,
    /// Bounds the bytes of their payloads.
    bytes: Rc<Permits>,
}

impl Session {
    fn new(worker: &Rc<Worker>, link: &Rc<Link>, agreement: Agreement) -> Rc<Self> {
        let Agreement { export, structured, allocation } = agreement;
        log::note(format_args!("{}: uses {:?}", link.name, export.name));
        Rc::new(Self {
            worker: worker.clone(),
            link: link.clone(),
            export,
            structured,
            allocation,
            outbox: Outbox::new(link.socket.clone(), worker.limits.patience),
            requests: Permits::new(worker.limits.depth),
            bytes: Permits::new(CLIENT_BYTES),
        })
    }

    /// Reads requests, and starts a coroutine for each.
    fn run(self: &Rc<Self>, input: &mut Receiver) -> Result<Infallible, Ending> {
        let mut started = 0;
        loop {
            let request = self.next_request(input)?;
            if request.command == command::DISCONNECT {
                return Err(Ending::Orderly);
            }
            let permits = self.permits(&request)?;
            let payload = match self.check(&request) {
                Ok(()) => self.payload(&request, input)?,
                Err(failure) => {
                    if request.command == command::WRITE {
                        input.skip(request.len as usize)?;
                    }
                    self.fail(&request, failure, permits);
                    continue;
                }
            };
            let session = self.clone();
            let carry_out = move || session.carry_out(&request, payload, permits);
            self.worker.context.spawn_local(carry_out)?;
            if matches!(request.command, command::READ | command::WRITE) {
                started += request.len as usize;
            }
            if started >= BATCH {
                started = 0;
                yield_now();
                self.outbox.wait_for_room();
            }
        }
    }

    /// The next request. A client may take its time between requests.
    fn next_request(&self, input: &mut Receiver) -> Result<Request, Ending> {
        let Some(bytes) = input.message(|socket| fd::wait_readable(socket))? else { return Err(Ending::Orderly) };
        Request::parse(&bytes).map_err(|magic| Ending::offence(format!("{magic:#010x} isn't how a request begins")))
    }

    /// Waits until the request fits in with the others.
    fn permits(&self, request: &Request) -> Result<[Permit; 3], Ending> {
        let bytes = match request.command {
            command::WRITE if request.len > MAX_PAYLOAD => {
                return Err(Ending::offence(format!("the client writes {} bytes at once", request.len)));
            }
            command::WRITE | command::READ if request.len <= MAX_PAYLOAD => Buffers::size(request.len as usize),
            _ => 0,
        };
        Ok([self.requests.acquire(1), self.bytes.acquire(bytes), self.worker.memory.acquire(bytes)])
    }

    fn check(&self, request: &Request) -> Result<(), Failure> {
        if self.link.is_stopping.get() {
            return Err(Failure::new(Errno::Shutdown, "the server stops"));
        }
        if request.command == command::READ && request.len > MAX_PAYLOAD {
            // What the protocol has for either kind of reply.
            let errno = if self.structured { Errno::Overflow } else { Errno::Invalid };
            return Err(Failure::new(errno, format!("at most {MAX_PAYLOAD} bytes can be read at once")));
        }
        if request.command == command::BLOCK_STATUS && !self.allocation {
            return Err(Failure::new(Errno::Invalid, "the client hasn't asked for base:allocation first"));
        }
        self.export.check(request)
    }

    /// The buffer of a read or a write; what is to be written is in it.
    fn payload(&self, request: &Request, input: &mut Receiver) -> Result<Option<Lease>, Ending> {
        if !matches!(request.command, command::READ | command::WRITE) {
            return Ok(None);
        }
        let mut payload = self.worker.buffers.lend(request.len as usize);
        if request.command == command::WRITE {
            input.read_exact(&mut payload)?;
        }
        Ok(Some(payload))
    }

    /// Carries out a request, and replies.
    fn carry_out(&self, request: &Request, payload: Option<Lease>, permits: [Permit; 3]) {
        let export = &*self.export;
        export.pass();
        let result = match (request.command, payload) {
            (command::READ, Some(mut buffer)) => {
                if let Err(failure) = export.read(request, &mut buffer) {
                    return self.fail(request, failure, permits);
                }
                let reply = Reply::data(request.cookie, request.offset, buffer, self.structured);
                return self.reply(reply, permits);
            }
            (command::BLOCK_STATUS, _) => {
                return self.reply(Reply::extents(request.cookie, &export.extents(request)), permits);
            }
            (command::WRITE, Some(payload)) => export.write(request, &payload),
            (command::FLUSH, _) => export.flush(),
            (command::TRIM, _) => export.trim(request),
            (command::WRITE_ZEROES, _) => export.write_zeroes(request),
            (other, _) => unreachable!("command {other} was checked"),
        };
        match result {
            Ok(()) => self.reply(Reply::done(request.cookie), permits),
            Err(failure) => self.fail(request, failure, permits),
        }
    }

    fn fail(&self, request: &Request, failure: Failure, permits: [Permit; 3]) {
        let Request { command, offset, len, .. } = request;
        log::warn(format_args!(
            "{}: command {command} ({len} bytes at {offset}) failed: {}",
            self.link.name, failure.reason
        ));
        self.reply(Reply::failure(request.cookie, failure, self.structured), permits);
    }

    fn reply(&self, reply: Reply, permits: [Permit; 3]) {
        self.outbox.push(&self.worker.context, reply, permits);
    }
}
