//! What a connection receives: many small messages by one system call, and payloads right to where they belong.

use std::io::{self, IoSliceMut, Read};
use std::rc::Rc;

use aioco::fd::Parked;
use socket2::Socket;

use crate::buffers::{Buffers, Lease};
use crate::limits::Patience;

/// Bytes of a buffer for messages. Hundreds of requests fit in; what there is of a payload has to be copied once more.
const BUFFER: usize = 16 << 10;

/// The longest message that is received whole.
const LONGEST: usize = 28;

/// A socket's receiving end. It has a buffer only while there is something in it: ten thousand idle connections need none.
pub struct Receiver {
    socket: Rc<Parked<Socket>>,
    buffers: Rc<Buffers>,
    patience: Patience,
    buffer: Option<Lease>,
    /// What of the buffer hasn't been taken.
    start: usize,
    end: usize,
}

impl Receiver {
    pub fn new(socket: Rc<Parked<Socket>>, buffers: Rc<Buffers>, patience: Patience) -> Self {
        Self { socket, buffers, patience, buffer: None, start: 0, end: 0 }
    }

    /// The next `N` bytes, which are at most [`LONGEST`]; `None` if the stream ends before them.
    ///
    /// `wait_at_first` waits until there is something to read, if nothing of the message is here yet.
    pub fn message<const N: usize>(
        &mut self,
        wait_at_first: impl Fn(&Parked<Socket>) -> io::Result<()>,
    ) -> io::Result<Option<[u8; N]>> {
        const { assert!(N <= LONGEST) };
        loop {
            if let Some(message) = self.buffered().first_chunk() {
                let message = *message;
                self.start += N;
                return Ok(Some(message));
            }
            let is_begun = !self.buffered().is_empty();
            if !self.refill(|socket| if is_begun { socket.readable() } else { wait_at_first(socket) })? {
                return if is_begun { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
            }
        }
    }

    /// As [`message`](Self::message), where the stream mustn't end.
    pub fn expect<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.message(Parked::readable)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Fills all of `target`, for which there is a limit of time.
    pub fn read_exact(&mut self, mut target: &mut [u8]) -> io::Result<()> {
        let here = self.buffered().len().min(target.len());
        target.split_off_mut(..here).expect("so much is there").copy_from_slice(&self.buffered()[..here]);
        self.start += here;
        if target.is_empty() {
            return Ok(());
        }
        let deadline = self.patience.deadline(target.len());
        while !target.is_empty() {
            // What follows the payload is received with it. The buffer is empty here.
            let buffer = self.buffer.get_or_insert_with(|| self.buffers.lend(BUFFER));
            let len = target.len();
            let slices = &mut [IoSliceMut::new(target), IoSliceMut::new(buffer)];
            match (&*self.socket).read_vectored(slices)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => {
                    target = &mut target[read.min(len)..];
                    (self.start, self.end) = (0, read.saturating_sub(len));
                    deadline.check()?;
                }
            }
        }
        Ok(())
    }

    /// Receives `len` bytes that nobody wants.
    pub fn skip(&mut self, mut len: usize) -> io::Result<()> {
        loop {
            let here = self.buffered().len().min(len);
            self.start += here;
            len -= here;
            if len == 0 {
                return Ok(());
            }
            if !self.refill(Parked::readable)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn buffered(&self) -> &[u8] {
        self.buffer.as_deref().map_or(&[], |buffer| &buffer[self.start..self.end])
    }

    /// Receives what there is, when there is something; returns whether there was. What is in the buffer is less than a
    /// message, and stays. It waits even if there is something already: so the requests that came before have their turn,
    /// and those of other clients.
    fn refill(&mut self, wait: impl Fn(&Parked<Socket>) -> io::Result<()>) -> io::Result<bool> {
        let mut rest = [0; LONGEST];
        let rest = &mut rest[..self.end - self.start];
        rest.copy_from_slice(self.buffered());
        loop {
            // The buffer isn't ours while we wait, and what a client sent of a message takes next to nothing.
            (self.buffer, self.start, self.end) = (None, 0, rest.len());
            wait(&self.socket)?;
            let buffer = self.buffer.insert(self.buffers.lend(BUFFER));
            buffer[..rest.len()].copy_from_slice(rest);
            match self.socket.get_ref().read(&mut buffer[rest.len()..]) {
                Ok(read) => {
                    self.end = rest.len() + read;
                    return Ok(read > 0);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
