//! What a connection sends: replies, in the order in which requests are done, many by one system call.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, Write};
use std::mem;
use std::net::Shutdown;
use std::rc::Rc;
use std::task::Waker;

use aioco::aio::Local;
use aioco::fd::Parked;
use aioco::park;
use socket2::Socket;

use crate::limits::Patience;
use crate::permits::Permit;
use crate::protocol::Reply;

/// The most parts of replies that go with one system call.
const PARTS: usize = 128;

/// While so many bytes are unsent, no more are read for this client: they would wait in memory, out of the caches.
const ROOM: usize = 512 << 10;

/// A socket's sending end, for many coroutines. Replies are queued; the first one starts a coroutine, which sends until
/// there is none left. It starts after the requests that are ready have had their turn, and takes all their replies.
pub struct Outbox {
    socket: Rc<Parked<Socket>>,
    patience: Patience,
    queue: RefCell<Vec<Queued>>,
    /// Bytes that are queued, or being sent.
    unsent: Cell<usize>,
    /// Who waits for there to be fewer.
    waiting: RefCell<Option<Waker>>,
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
            unsent: Cell::new(0),
            waiting: RefCell::default(),
            is_sending: Cell::new(false),
            is_broken: Cell::new(false),
        })
    }

    /// Has a reply sent.
    pub fn push(self: &Rc<Self>, context: &Local, reply: Reply, permits: [Permit; 3]) {
        if self.is_broken.get() {
            return;
        }
        let len = reply.parts().map(<[u8]>::len).iter().sum::<usize>();
        self.unsent.set(self.unsent.get() + len);
        self.queue.borrow_mut().push(Queued { reply, _permits: permits });
        if !self.is_sending.replace(true) {
            let outbox = self.clone();
            if let Err(error) = context.spawn_local(move || outbox.send_all()) {
                self.give_up(&error);
            }
        }
    }

    /// Waits until less than [`ROOM`] is unsent. For one coroutine.
    pub fn wait_for_room(&self) {
        while self.unsent.get() >= ROOM && !self.is_broken.get() {
            self.waiting.replace(Some(park::waker()));
            park::park();
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
                    sent => {
                        IoSlice::advance_slices(&mut left, sent);
                        self.unsent.set(self.unsent.get() - sent);
                    }
                }
                if self.unsent.get() < ROOM {
                    self.wake();
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
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }
}
