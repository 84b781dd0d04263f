//! Where requests come in, and how a chain comes to its end.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::Waker;

use aioco::aio::Local;
use aioco::block::{self, AlignedBuf};
use aioco::park;

use crate::driver::{BLOCK, BlockDriver, layers};

/// How reads go down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    BypassIfPossible,
    Coroutines,
}

/// How many requests went which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub bypassed: u64,
    pub by_coroutine: u64,
    pub refused: u64,
}

/// A chain of drivers, as a guest sees it: requests with a callback.
pub struct Device {
    context: Local,
    top: Rc<dyn BlockDriver>,
    way: Way,
    in_flight: Cell<usize>,
    is_shutting_down: Cell<bool>,
    /// Those that wait until nothing is in flight.
    draining: RefCell<Vec<Waker>>,
    counts: Cell<Counts>,
}

impl Device {
    pub fn new(context: &Local, top: Rc<dyn BlockDriver>, way: Way) -> Self {
        Self {
            context: context.clone(),
            top,
            way,
            in_flight: Cell::new(0),
            is_shutting_down: Cell::new(false),
            draining: RefCell::default(),
            counts: Cell::default(),
        }
    }

    /// The layers, from top to bottom.
    pub fn describe(&self) -> String {
        layers(&self.top).map(|layer| layer.describe()).collect::<Vec<_>>().join(" > ")
    }

    /// In bytes.
    pub fn size(&self) -> u64 {
        self.top.size()
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Reads whole blocks; `then` is called with the result when it is done, never within this call.
    ///
    /// # Errors
    ///
    /// [`NotConnected`](io::ErrorKind::NotConnected) if the device is shutting down, and
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for what isn't whole blocks of it. The rest is for `then`.
    pub fn read(
        self: &Rc<Self>,
        buffer: AlignedBuf,
        offset: u64,
        then: impl FnOnce(io::Result<()>, AlignedBuf) + 'static,
    ) -> io::Result<()> {
        let request = self.admit(offset, buffer.len())?;
        let len = buffer.len();
        let shortcut = match self.way {
            Way::BypassIfPossible => self.top.shortcut(offset, len),
            Way::Coroutines => None,
        };
        let Some(shortcut) = shortcut else {
            return self.run(request, buffer, move |top, buffer| top.read(buffer, offset), then);
        };
        self.count(|counts| counts.bypassed += 1);
        block::read_then(&self.context, shortcut.file, buffer, shortcut.offset, move |read, buffer| {
            then(read.and_then(|read| check_is_whole(read, len)), buffer);
            drop(request);
        })
    }

    /// Writes whole blocks; as [`read`](Self::read).
    pub fn write(
        self: &Rc<Self>,
        buffer: AlignedBuf,
        offset: u64,
        then: impl FnOnce(io::Result<()>, AlignedBuf) + 'static,
    ) -> io::Result<()> {
        let request = self.admit(offset, buffer.len())?;
        self.run(request, buffer, move |top, buffer| top.write(buffer, offset), then)
    }

    /// Sends a request down the chain, in a coroutine of its own.
    fn run(
        &self,
        request: InFlight,
        mut buffer: AlignedBuf,
        work: impl FnOnce(&dyn BlockDriver, &mut [u8]) -> io::Result<()> + 'static,
        then: impl FnOnce(io::Result<()>, AlignedBuf) + 'static,
    ) -> io::Result<()> {
        self.count(|counts| counts.by_coroutine += 1);
        let coroutine = move || {
            let result = work(&*request.0.top, &mut buffer);
            then(result, buffer);
            drop(request);
        };
        // Nobody joins it: the callback says when it is done.
        self.context.spawn_local(coroutine).map(drop)
    }

    /// Parks the coroutine until no requests are in flight, those included that come in meanwhile.
    pub fn drain(&self) {
        while self.in_flight.get() > 0 {
            self.draining.borrow_mut().push(park::waker());
            park::park();
        }
    }

    /// Ends the chain: refuses requests from now on, waits for those that are in flight, and closes the layers. From
    /// top to bottom, since a layer that is closed may still have something to write to those below. In a coroutine.
    ///
    /// # Errors
    ///
    /// The first that a layer had in closing; all of them are closed nevertheless.
    pub fn shut_down(&self) -> io::Result<()> {
        self.is_shutting_down.set(true);
        layers(&self.top).for_each(|layer| layer.hurry());
        self.drain();
        layers(&self.top).map(|layer| layer.close()).fold(Ok(()), io::Result::and)
    }

    fn admit(self: &Rc<Self>, offset: u64, len: usize) -> io::Result<InFlight> {
        if self.is_shutting_down.get() {
            self.count(|counts| counts.refused += 1);
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the device is shutting down"));
        }
        let is_inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.size());
        if !is_inside || !len.is_multiple_of(BLOCK) || !offset.is_multiple_of(BLOCK as u64) {
            let message = format!("{len} bytes at {offset} aren't whole blocks of a device of {} bytes", self.size());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        self.in_flight.set(self.in_flight.get() + 1);
        Ok(InFlight(self.clone()))
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }
}

/// A request that is in flight until this is dropped: after its callback, or when a driver panics.
struct InFlight(Rc<Device>);

impl Drop for InFlight {
    fn drop(&mut self) {
        let device = &self.0;
        device.in_flight.set(device.in_flight.get() - 1);
        if device.in_flight.get() == 0 {
            device.draining.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// A file may have become smaller than it was.
fn check_is_whole(read: usize, len: usize) -> io::Result<()> {
    if read == len { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use aioco::AioContext;

    use super::*;
    use crate::driver::tests::Fake;

    type Log = Rc<RefCell<Vec<String>>>;

    fn fake(name: &'static str, log: &Log) -> Fake {
        Fake { name, log: log.clone(), ..Fake::default() }
    }

    fn noting(log: &Log, what: &'static str) -> impl FnOnce(io::Result<()>, AlignedBuf) + 'static {
        let log = log.clone();
        move |result, _| {
            result.unwrap();
            log.borrow_mut().push(what.to_owned());
        }
    }

    fn block() -> AlignedBuf {
        AlignedBuf::new(BLOCK, BLOCK)
    }

    #[test]
    fn a_shutdown_waits_for_requests_and_refuses_new_ones() {
        let context = AioContext::new().unwrap();
        let log = Log::default();
        let bottom = Rc::new(fake("bottom", &log));
        bottom.holds.set(true);
        let device = Rc::new(Device::new(&context, bottom.clone(), Way::BypassIfPossible));
        device.read(block(), 0, noting(&log, "done")).unwrap();
        device.write(block(), 0, noting(&log, "done")).unwrap();
        assert_eq!((device.in_flight(), log.borrow().len()), (2, 0), "nothing happens within the call");

        let shutting_down = {
            let device = device.clone();
            context.spawn_local(move || device.shut_down()).unwrap()
        };
        for _ in 0..3 {
            context.poll(false);
        }
        assert_eq!(*log.borrow(), ["bottom: hurry"], "it waits");
        let refused = device.read(block(), 0, |_, _| unreachable!("it is refused")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotConnected);

        bottom.let_go();
        shutting_down.join().unwrap().unwrap();
        let expected = ["bottom: hurry", "bottom: read", "done", "bottom: write", "done", "bottom: close"];
        assert_eq!(*log.borrow(), expected);
        assert_eq!(device.counts(), Counts { bypassed: 0, by_coroutine: 2, refused: 1 });
    }

    #[test]
    fn layers_are_closed_from_top_to_bottom_even_if_one_fails() {
        let context = AioContext::new().unwrap();
        let log = Log::default();
        let bottom = Rc::new(Fake { fails_to_close: true, ..fake("bottom", &log) });
        let middle = Rc::new(Fake { below: Some(bottom), fails_to_close: true, ..fake("middle", &log) });
        let top = Rc::new(Fake { below: Some(middle), ..fake("top", &log) });
        let device = Device::new(&context, top, Way::Coroutines);
        assert_eq!(context.block_on(|| device.shut_down()).unwrap_err().to_string(), "middle");
        assert_eq!(log.borrow()[3..], ["top: close", "middle: close", "bottom: close"]);
    }

    #[test]
    fn what_is_not_whole_blocks_of_the_device_is_refused() {
        let context = AioContext::new().unwrap();
        let device = Rc::new(Device::new(&context, Rc::new(Fake::default()), Way::Coroutines));
        let read = |len, offset| device.read(AlignedBuf::new(len, BLOCK), offset, |_, _| ());
        for (len, offset) in [(BLOCK, 1), (1, 0), (BLOCK, device.size()), (BLOCK, u64::MAX - 4095)] {
            assert_eq!(read(len, offset).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{len} at {offset}");
        }
        assert_eq!(device.in_flight(), 0);
    }
}
