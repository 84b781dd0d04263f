//! The channel of a coroutine's outcome.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Wake, Waker};

use super::race;
use crate::primitive::UnsafeCell;
use crate::primitive::atomic::{AtomicBool, Ordering};
use crate::task::oneshot::{Receiver, Sender, channel};

models! {
    a_receiver_waits_until_it_is_woken catches
        nobody_is_woken, send_not_released, take_not_acquired, waker_not_released, waker_not_acquired;
    a_receiver_changes_its_waker catches first_waker_is_kept;
    a_value_is_there_or_not catches send_not_released, into_value_not_acquired;
    a_receiver_waits_and_goes catches close_not_released, drop_not_acquired, refused_not_acquired;
    two_ask_at_once catches ask_not_acquired;
}

/// Counts its drops, which come after all uses.
struct Counted {
    drops: Rc<Cell<u32>>,
    content: UnsafeCell<()>,
}

impl Counted {
    fn new(drops: &Rc<Cell<u32>>) -> Self {
        Self { drops: drops.clone(), content: UnsafeCell::new(()) }
    }

    fn read(&self) {
        self.content.with(drop);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.content.with_mut(drop);
        }
        self.drops.set(self.drops.get() + 1);
    }
}

type Receiving = ManuallyDrop<Receiver<Counted, Counted>>;

/// Both ends, for the threads to take. (The receiver isn't dropped by a panic, in which loom can't be used.)
struct Ends {
    sender: Cell<Option<Sender<Counted, Counted>>>,
    receiver: Cell<Option<Receiving>>,
    values_dropped: Rc<Cell<u32>>,
    freed: Rc<Cell<u32>>,
}

impl Ends {
    fn new() -> Rc<Self> {
        let freed = Rc::new(Cell::new(0));
        let (sender, receiver) = channel(|| Counted::new(&freed));
        Rc::new(Self {
            sender: Cell::new(Some(sender)),
            receiver: Cell::new(Some(ManuallyDrop::new(receiver))),
            values_dropped: Rc::default(),
            freed,
        })
    }

    fn send(&self) {
        self.sender.take().expect("there").send(Counted::new(&self.values_dropped));
    }

    fn receiver(&self) -> Receiving {
        self.receiver.take().expect("there")
    }

    #[track_caller]
    fn assert_gone(&self) {
        assert_eq!((self.values_dropped.get(), self.freed.get()), (1, 1));
    }
}

/// A waker that raises a flag. (Relaxed: only the channel makes the value visible.)
struct Flag(AtomicBool);

impl Flag {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(false)))
    }

    fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A receiver asks twice, as a join does that was woken for nothing. If it has to wait after that, it is woken.
fn a_receiver_waits_until_it_is_woken() {
    let ends = Ends::new();

    let (_, left) = race::two(&ends, Ends::send, |ends| {
        let receiver = ends.receiver();
        let flag = Flag::new();
        for _ in 0..2 {
            if let Some(value) = receiver.take_or_wait(flag.clone().into()) {
                value.read();
                drop(ManuallyDrop::into_inner(receiver));
                return None;
            }
            race::let_others_go_first();
        }
        Some((receiver, flag))
    });

    if let Some((receiver, flag)) = left {
        assert!(flag.is_raised(), "it waits for ever");
        assert!(ManuallyDrop::into_inner(receiver).into_value().is_ok());
    }
    ends.assert_gone();
}

/// A receiver asks with one waker and then with another, as a task does that moves from one executor to another. If it
/// has to wait after that, the latter is woken.
fn a_receiver_changes_its_waker() {
    let ends = Ends::new();

    let (_, left) = race::two(&ends, Ends::send, |ends| {
        let receiver = ends.receiver();
        let flag = Flag::new();
        for waker in [Flag::new(), flag.clone()] {
            if let Some(value) = receiver.take_or_wait(waker.into()) {
                value.read();
                drop(ManuallyDrop::into_inner(receiver));
                return None;
            }
            race::let_others_go_first();
        }
        Some((receiver, flag))
    });

    if let Some((receiver, flag)) = left {
        assert!(flag.is_raised(), "it waits for ever");
        assert!(ManuallyDrop::into_inner(receiver).take().is_some());
    }
    ends.assert_gone();
}

/// A receiver that doesn't wait has the value or is still good.
fn a_value_is_there_or_not() {
    let ends = Ends::new();

    let (_, left) = race::two(&ends, Ends::send, |ends| {
        let receiver = ManuallyDrop::into_inner(ends.receiver());
        receiver.into_value().map(drop).err().map(ManuallyDrop::new)
    });

    if let Some(receiver) = left {
        assert!(receiver.is_sent());
        assert!(ManuallyDrop::into_inner(receiver).into_value().is_ok());
    }
    ends.assert_gone();
}

/// A receiver asks, and is dropped without having waited. Whoever is last frees everything.
fn a_receiver_waits_and_goes() {
    let ends = Ends::new();

    race::two(&ends, Ends::send, |ends| {
        let receiver = ends.receiver();
        drop(receiver.take_or_wait(Flag::new().into()));
        receiver.attached().read();
        drop(ManuallyDrop::into_inner(receiver));
    });

    ends.assert_gone();
}

/// Two that ask with a shared receiver: the later one is woken, and both if they meet.
fn two_ask_at_once() {
    let ends = Ends::new();
    let flags = [Flag::new(), Flag::new()];
    let receiver = Rc::new(ends.receiver());
    let ask = |flag: &Arc<Flag>| {
        let waker: Waker = flag.clone().into();
        move |receiver: &Receiving| assert!(receiver.take_or_wait(waker).is_none())
    };

    race::two(&receiver, ask(&flags[0]), ask(&flags[1]));

    ends.send();
    assert!(flags.iter().any(|flag| flag.is_raised()), "nobody is woken");
    drop(Rc::into_inner(receiver).map(ManuallyDrop::into_inner));
    ends.assert_gone();
}
