//! Who waits: for a descriptor, or for a point in time.

use std::sync::Arc;
use std::task::Waker;

use super::fdmon::Side;
use super::request::Told;
use super::{handler, timer};

/// Somebody whom the loop tells, on its own thread, that an event has come.
#[derive(Debug)]
pub(super) enum Waiter {
    /// Whoever called a parking hook: a coroutine, as a rule. It is woken.
    Waker(Waker),
    /// A handler of this side of its descriptor. Its callback has its turn.
    Handler(Arc<handler::Node>, Side),
    /// A timer. Its callback has its turn.
    Timer(Arc<timer::Node>),
    /// The loop's request of this number. It goes on in its turn.
    Bypass(u64),
}

impl From<Told> for Waiter {
    /// Who is told by the loop of a request's own context.
    fn from(told: Told) -> Self {
        match told {
            Told::Waker(waker) => Self::Waker(waker),
            Told::Bypass(number) | Told::Context(number, _) => Self::Bypass(number),
        }
    }
}

impl Waiter {
    /// Tells somebody of a context that has ended: a coroutine that lives on is woken.
    pub(super) fn wake(self) {
        if let Self::Waker(waker) = self {
            waker.wake();
        }
    }
}
