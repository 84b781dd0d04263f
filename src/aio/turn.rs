//! One turn of the loop.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::shared::Shared;
use crate::coroutine::{WokenList, enter_home};

/// Turns in a row that may look at no descriptor because coroutines are ready to run.
const MAX_BUSY_TURNS: u32 = 16;

impl Shared {
    /// See [`AioContext::poll`](super::AioContext::poll).
    pub(super) fn run_once(self: &Arc<Self>, blocking: bool) -> bool {
        let _home = enter_home(self.clone());
        let fired = self.wait(blocking);
        let mut progress = !fired.is_empty();
        for waker in fired {
            waker.wake();
        }
        let mut pushed = self.pushed.take_all();
        let ready = self.with_local(|local| {
            local.ready.append(&mut pushed);
            std::mem::take(&mut local.ready)
        });
        // What becomes ready from here on has its turn next time.
        let mut batch = Batch { shared: self, list: ready.unwrap_or_default() };
        for woken in batch.list.by_ref() {
            progress = true;
            woken.run();
        }
        progress
    }

    /// Waits for descriptors, deadlines and other threads, if there is nothing to run; returns the wakers that are due.
    fn wait(&self, blocking: bool) -> Vec<Waker> {
        let mut fired = Vec::new();
        let notified = self.with_local(|local| {
            let busy = !local.ready.is_empty() || !self.pushed.is_empty();
            if busy && local.busy_turns < MAX_BUSY_TURNS {
                local.busy_turns += 1;
                local.timers.expire(&mut fired);
                return Ok(false);
            }
            local.busy_turns = 0;
            let mut timeout = if blocking && !busy { local.timers.timeout() } else { Some(Duration::ZERO) };
            let sleeps = timeout != Some(Duration::ZERO);
            if sleeps {
                self.notify.announce_sleep();
                if !self.pushed.is_empty() {
                    timeout = Some(Duration::ZERO);
                }
            }
            let notified = local.monitor.wait(timeout, &mut fired);
            if sleeps {
                self.notify.awake();
            }
            local.timers.expire(&mut fired);
            notified
        });
        match notified.expect("a context that has ended was polled") {
            Ok(true) => self.notifier.clear(),
            Ok(false) => {}
            Err(error) => panic!("epoll failed: {error}"),
        }
        fired
    }
}

/// Coroutines whose turn it is. If one of them panics, the others keep their turn.
struct Batch<'a> {
    shared: &'a Shared,
    list: WokenList,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.list.is_empty() {
            self.shared.with_local(|local| {
                self.list.append(&mut local.ready);
                std::mem::swap(&mut self.list, &mut local.ready);
            });
        }
    }
}
