//! What the group `block` times: reads and writes of 4 KiB at random offsets of a file, a number of them at once.
//!
//! Each contestant is an [`Engine`] in a file of its own, with the same work: as many slots as the depth is, each of
//! which takes the next offset from the [`Load`], moves a page, and goes on until all is done.

mod aioco;
mod awaited;
mod bypass;
mod compio;
mod image;
mod load;
mod monoio;
mod page;
mod plain;
pub mod raw_ring;
mod tokio;
mod tokio_uring;

use std::rc::Rc;
use std::thread;
use std::time::Duration;

pub use self::aioco::Aioco;
pub use self::awaited::Awaited;
pub use self::bypass::Bypass;
pub use self::compio::Compio;
pub use self::image::{Cached, Direct, Place, Tmpfs};
pub use self::load::Load;
pub use self::monoio::Monoio;
pub use self::plain::Plain;
pub use self::raw_ring::RawRing;
pub use self::tokio::Tokio;
pub use self::tokio_uring::TokioUring;

/// Who carries out requests.
pub trait Engine {
    /// The name in reports.
    const NAME: &'static str;

    /// Sets itself up, has each slot do something to warm up, and returns how long `count` requests take.
    fn run(load: Rc<Load>, count: u64) -> Duration;
}

/// Which way data goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

/// What one time around the loop is divided into: requests.
pub const fn units<P: Place>(depth: u32) -> u32 {
    depth * P::PER_SLOT
}

/// Times reads.
pub fn reads<E: Engine, P: Place, const DEPTH: u32>(times: u64) -> Duration {
    run::<E, P>(Direction::Read, DEPTH, times)
}

/// Times writes.
pub fn writes<E: Engine, P: Place, const DEPTH: u32>(times: u64) -> Duration {
    run::<E, P>(Direction::Write, DEPTH, times)
}

/// How long the kernel is given to clean up what the one before has left, rings above all.
const PAUSE: Duration = Duration::from_millis(8);

/// Runs an engine on a thread of its own, on the same core. The kernel interrupts a thread to clean up a ring that it
/// has dropped, and takes some milliseconds until it does: the next one who is timed shouldn't be that thread.
fn run<E: Engine, P: Place>(direction: Direction, depth: u32, times: u64) -> Duration {
    let image = P::image().expect("the place has been asked before");
    thread::sleep(PAUSE);
    let work = || {
        let load = Load::new(image, direction, depth as usize);
        E::run(Rc::new(load), times * u64::from(units::<P>(depth)))
    };
    thread::scope(|scope| scope.spawn(work).join().expect("it doesn't panic"))
}
