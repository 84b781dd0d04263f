//! A program with a loop around `mio::Poll`: it has a socket that it answers, and a timer.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aioco::sync::channel;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::mio_home::MioHome;
use crate::workload::{Guests, Host, Report};

const WAKER: Token = Token(0);
const SOCKET: Token = Token(1);

const TICK: Duration = Duration::from_millis(2);

/// Runs the loop until its guests are done.
pub fn run() -> io::Result<Report> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(64);
    let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);

    // What the loop is there for.
    let (socket, handler) = UnixDatagram::pair()?;
    socket.set_nonblocking(true)?;
    poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), SOCKET, Interest::READABLE)?;
    let (tick, ticks) = channel(16);
    let mut next_tick = Instant::now() + TICK;

    // Its guests.
    let home = MioHome::new(poll.registry(), waker)?;
    let guests = Guests::start(home.home(), Host { ticks, handler })?;

    while !guests.are_done() {
        let until_tick = next_tick.saturating_duration_since(Instant::now());
        let timeout = home.timeout().map_or(until_tick, |timeout| timeout.min(until_tick));
        match poll.poll(&mut events, Some(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            match event.token() {
                WAKER => {}
                SOCKET => answer(&socket)?,
                token => home.event(token),
            }
        }
        if Instant::now() >= next_tick {
            next_tick += TICK;
            // Nobody may be listening any more, or be behind by a few.
            let _ = tick.try_send(());
        }
        home.run();
    }
    drop(home);
    guests.report()
}

/// Sends back all that has come.
fn answer(socket: &UnixDatagram) -> io::Result<()> {
    let mut message = [0; 16];
    loop {
        match socket.recv(&mut message) {
            Ok(len) => _ = socket.send(&message[..len])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
