//! mio, the portable layer over epoll that tokio also uses.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use ::mio::unix::SourceFd;
use ::mio::{Events, Interest, Poll, Token};

use super::event_fd::EventFd;
use super::poller::Poller;

/// An instance, and room for its events.
pub struct Mio {
    poll: Poll,
    events: Events,
}

impl Poller for Mio {
    const NAME: &'static str = "mio";

    fn new() -> io::Result<Self> {
        Ok(Self { poll: Poll::new()?, events: Events::with_capacity(64) })
    }

    fn watch(&mut self, fd: &EventFd, token: u32) -> io::Result<()> {
        self.poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), Token(token as usize), Interest::READABLE)
    }

    fn unwatch(&mut self, fd: &EventFd, _: u32) -> io::Result<()> {
        self.poll.registry().deregister(&mut SourceFd(&fd.as_raw_fd()))
    }

    fn turn(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        self.poll.poll(&mut self.events, timeout)?;
        Ok(self.events.iter().count())
    }
}
