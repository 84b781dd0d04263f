//! How a coroutine ended, and who waits for it.

use std::sync::Arc;
use std::task::Waker;
use std::thread;

use crate::coroutine::Cancelled;
use crate::primitive::Mutex;

/// The shared state of a spawned coroutine and its join handle.
#[derive(Debug)]
pub(super) struct Outcome<T>(Mutex<State<T>>);

#[derive(Debug)]
enum State<T> {
    /// Not yet; perhaps somebody waits.
    Pending(Option<Waker>),
    Done(thread::Result<T>),
    /// The handle has it.
    Taken,
}

impl<T> Outcome<T> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State::Pending(None)))
    }

    pub(super) fn is_decided(&self) -> bool {
        !matches!(*self.0.lock(), State::Pending(_))
    }

    /// Takes the result if it is there; otherwise `waker` is woken when it is.
    pub(super) fn take_or_wait(&self, waker: Waker) -> Option<thread::Result<T>> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(result) => Some(result),
            State::Pending(_) => {
                *state = State::Pending(Some(waker));
                None
            }
            State::Taken => unreachable!("a join handle takes the result once"),
        }
    }

    fn decide(&self, result: thread::Result<T>) {
        let before = std::mem::replace(&mut *self.0.lock(), State::Done(result));
        // Woken after the lock has been released, so that the woken one finds it free.
        if let State::Pending(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// The coroutine's side: decides the outcome, at the latest when it is dropped.
#[derive(Debug)]
pub(super) struct Completion<T>(Option<Arc<Outcome<T>>>);

impl<T> Completion<T> {
    pub(super) fn new(outcome: Arc<Outcome<T>>) -> Self {
        Self(Some(outcome))
    }

    /// The coroutine was abandoned: it will neither complete nor be dropped.
    pub(super) fn decide_cancelled(&self) {
        if let Some(outcome) = &self.0 {
            outcome.decide(Err(Box::new(Cancelled)));
        }
    }

    pub(super) fn complete(mut self, result: thread::Result<T>) {
        if let Some(outcome) = self.0.take() {
            outcome.decide(result);
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        self.decide_cancelled();
    }
}
