//! A program with a calloop loop: it has a socket that it answers, and a timer.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use aioco::sync::{Sender, channel};
use calloop::generic::{Generic, NoIoDrop};
use calloop::timer::{TimeoutAction, Timer};
use calloop::{EventLoop, Interest, LoopHandle, Mode, PostAction};

use crate::calloop_home::CalloopHome;
use crate::workload::{Guests, Host, Report};

const TICK: Duration = Duration::from_millis(2);

/// What the loop's callbacks work on.
struct Program {
    tick: Sender<()>,
}

/// Runs the loop until its guests are done.
pub fn run() -> io::Result<Report> {
    let mut event_loop = EventLoop::try_new().map_err(io::Error::other)?;
    let (tick, ticks) = channel(16);
    let mut program = Program { tick };
    let (socket, handler) = UnixDatagram::pair()?;
    add_sources(&event_loop.handle(), socket).map_err(io::Error::other)?;

    let home = CalloopHome::new(event_loop.handle()).map_err(io::Error::other)?;
    let guests = Guests::start(home.home(), Host { ticks, handler })?;
    while !guests.are_done() {
        event_loop.dispatch(None, &mut program).map_err(io::Error::other)?;
    }
    drop(home);
    guests.report()
}

/// What the loop is there for.
fn add_sources(handle: &LoopHandle<'static, Program>, socket: UnixDatagram) -> calloop::Result<()> {
    let tick = |_, _: &mut (), program: &mut Program| {
        // Nobody may be listening any more, or be behind by a few.
        let _ = program.tick.try_send(());
        TimeoutAction::ToDuration(TICK)
    };
    handle.insert_source(Timer::from_duration(TICK), tick).map_err(|refused| refused.error)?;
    let answer = |_, socket: &mut NoIoDrop<UnixDatagram>, _: &mut Program| {
        let mut message = [0; 16];
        let len = socket.recv(&mut message)?;
        socket.send(&message[..len])?;
        Ok(PostAction::Continue)
    };
    let socket = Generic::new(socket, Interest::READ, Mode::Level);
    handle.insert_source(socket, answer).map_err(|refused| refused.error)?;
    Ok(())
}
