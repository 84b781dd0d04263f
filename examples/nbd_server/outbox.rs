//! What a connection sends: replies, in the order in which requests are done, many by one system call.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, Write};
use std::mem;
use std::net::Shutdown;
use std::rc::Rc;

use aioco::aio::Local;
use aioco::fd::Parked;
use socket2::Socket;

use crate::limits::Patience;
use crate::permits::Permit;
use crate::protocol::Reply;

/// The most parts of replies that go with one system call.
const PARTS: usize = 128;

/// A socket's sending end, for many coroutines. Replies are queued; the first one starts a coroutine, which sends until
/// there is none left. It starts after the requests that are ready have had their turn, and takes all their replies.
pub struct Outbox {
    socket: Rc<Parked<Socket>>,
    patience: Patience,
    queue: RefCell<Vec<Queued>>,
    is_sending: Cell<bool>,
    is_broken: Cell<bool>,
}

/// A reply, and the permits of its request, which aren't free before it is sent: so a client that doesn't read gets no more
/// memory than they allow.
struct Queued {
    reply: Reply,
    _permits: [Permit; 3],
}

impl Outbox {
    pub fn new(socket: Rc<Parked<Socket>>, patience: Patience) -> Rc<Self> {
        Rc::new(Self {
            socket,
            patience,
            queue: RefCell::default(),
            is_sending: Cell::new(false),
            is_broken: Cell::new(false),
        })
    }

    /// Has a reply sent.
    pub fn push(self: &Rc<Self>, context: &Local, reply: Reply, permits: [Permit; 3]) {
        if self.is_broken.get() {
            return;
        }
        self.queue.borrow_mut().push(Queued { reply, _permits: permits });
        if !self.is_sending.replace(true) {
            let outbox = self.clone();
            if let Err(error) = context.spawn_local(move || outbox.send_all()) {
                self.give_up(&error);
            }
        }
    }

    fn send_all(&self) {
        let mut batch = Vec::new();
        loop {
            mem::swap(&mut batch, &mut *self.queue.borrow_mut());
            if batch.is_empty() {
                break;
            }
            if let Err(error) = self.send(&batch) {
                return self.give_up(&error);
            }
            batch.clear();
        }
        // Its memory is for the next ones.
        *self.queue.borrow_mut() = batch;
        self.is_sending.set(false);
    }

    fn send(&self, batch: &[Queued]) -> io::Result<()> {
        for replies in batch.chunks(PARTS / 2) {
            let mut slices = [IoSlice::new(&[]); PARTS];
            let parts = replies.iter().flat_map(|queued| queued.reply.parts()).filter(|part| !part.is_empty());
            let count = slices.iter_mut().zip(parts).map(|(slice, part)| *slice = IoSlice::new(part)).count();
            let mut left = &mut slices[..count];
            let mut deadline = None;
            while !left.is_empty() {
                match (&*self.socket).write_vectored(left)? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    sent => IoSlice::advance_slices(&mut left, sent),
                }
                if !left.is_empty() {
                    let bytes = left.iter().map(|slice| slice.len()).sum();
                    deadline.get_or_insert_with(|| self.patience.deadline(bytes)).check()?;
                }
            }
        }
        Ok(())
    }

    /// Nothing can be sent any more: the connection is no use.
    fn give_up(&self, error: &io::Error) {
        crate::log::warn(format_args!("a reply can't be sent: {error}"));
        self.is_broken.set(true);
        // Who waits for a request sees the end of the stream.
        let _ = self.socket.get_ref().shutdown(Shutdown::Both);
        let dropped = mem::take(&mut *self.queue.borrow_mut());
        drop(dropped);
    }
}
