//! One turn of the loop.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::bh_state::Urgency;
use super::shared::Shared;
use crate::coroutine::WokenList;

/// Turns in a row that may look at no descriptor because coroutines are ready to run.
const MAX_BUSY_TURNS: u32 = 16;

/// How long idle bottom halves wait at most.
const IDLE_WAIT: Duration = Duration::from_millis(10);

impl Shared {
    /// See [`AioContext::poll`](super::AioContext::poll).
    pub(super) fn run_once(self: &Arc<Self>, blocking: bool) -> bool {
        let _home = self.enter();
        let fired = self.wait(blocking);
        let mut progress = !fired.is_empty();
        // Woken first, to run after the bottom halves: one of those may panic.
        fired.into_iter().for_each(Waker::wake);
        progress |= self.run_bottom_halves();
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
        self.with_local(|local| local.monitor.flush());
        progress
    }

    /// Runs the bottom halves that have been scheduled, and those that an outer turn has not run yet. Returns whether
    /// there was progress.
    fn run_bottom_halves(&self) -> bool {
        self.with_local(|local| local.bottom_halves.refill(&self.scheduled));
        let mut progress = false;
        while let Some(entry) = self.with_local(|local| local.bottom_halves.pop()).flatten() {
            progress |= entry.run();
        }
        progress
    }

    /// Waits for descriptors, deadlines and other threads, if there is nothing to run; returns the wakers that are due.
    fn wait(&self, blocking: bool) -> Vec<Waker> {
        let mut fired = Vec::new();
        let waited = self.with_local(|local| {
            local.bottom_halves.refill(&self.scheduled);
            let bottom_halves = local.bottom_halves.urgency();
            let busy = !local.ready.is_empty() || !self.pushed.is_empty() || bottom_halves == Urgency::Now;
            if busy && local.busy_turns < MAX_BUSY_TURNS {
                local.busy_turns += 1;
                local.timers.expire(&mut fired);
                return Ok(());
            }
            local.busy_turns = 0;
            let mut timeout = if blocking && !busy { local.timers.timeout() } else { Some(Duration::ZERO) };
            if bottom_halves == Urgency::Idle {
                timeout = Some(timeout.map_or(IDLE_WAIT, |timeout| timeout.min(IDLE_WAIT)));
            }
            let sleeps = timeout != Some(Duration::ZERO);
            let work = || !self.pushed.is_empty() || !self.scheduled.is_empty();
            if sleeps && !self.notify.announce_sleep(work) {
                timeout = Some(Duration::ZERO);
            }
            let waited = local.monitor.wait(timeout, &mut fired);
            if sleeps {
                self.notify.awake();
            }
            local.timers.expire(&mut fired);
            waited.map(drop)
        });
        if let Err(error) = waited.expect("a context that has ended was polled") {
            panic!("{} failed: {error}", self.choice.kind());
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
