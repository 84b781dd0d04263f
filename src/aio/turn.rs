//! One turn of the loop.

use std::io;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Local;
use super::bh_state::Urgency;
use super::fdmon::Batch;
use super::notify::{Reason, Sleep};
use super::parameters::Coalescing;
use super::shared::{Due, Loop, MAX_INLINE, Shared};
use super::waiter::Waiter;
use crate::coroutine::{WokenList, wake_at};
use crate::sys::futex;

/// Turns in a row that may look at no descriptor because there is something to run.
pub(super) const MAX_BUSY_TURNS: u32 = 16;

/// How long idle bottom halves wait at most.
const IDLE_WAIT: Duration = Duration::from_millis(10);

impl Shared {
    /// See [`Local::poll`](super::Local::poll).
    pub(super) fn run_once(self: &Arc<Self>, blocking: bool) -> bool {
        let _home = self.enter();
        // Coroutines are woken first, and run last: callbacks may panic.
        let mut progress = self.tell_fired(self.wait(blocking));
        let mut next = self.with_local(|local| local.next(self)).unwrap_or(Next::Nothing);
        if let Next::Callbacks = next {
            progress |= self.run_bottom_halves();
            progress |= self.run_due();
            progress |= self.run_bypasses();
            next = self.with_local(|local| local.next_coroutines(self)).unwrap_or(Next::Nothing);
        }
        if let Next::Coroutines(list) = next {
            progress = true;
            self.run_ready(list);
            self.with_local(|local| local.monitor.flush());
        }
        progress
    }

    /// Waits for descriptors, deadlines and other threads, if there is nothing to run. Returns those who waited for what
    /// has happened.
    fn wait(&self, blocking: bool) -> Vec<Waiter> {
        const ENDED: &str = "a context that has ended was polled";
        let waited = self.with_local(|local| {
            let waited = match local.plan(self, blocking) {
                Plan::Run => local.skip_wait(self),
                Plan::Wait(timeout) => local.wait(self, timeout),
                Plan::PollFirst(timeout) => return Err(timeout),
            };
            Ok(waited.map(|_| local.take_fired()))
        });
        let waited = waited.expect(ENDED).unwrap_or_else(|timeout| {
            self.poll_then_wait(timeout)?;
            Ok(self.with_local(Loop::take_fired).expect(ENDED))
        });
        waited.unwrap_or_else(|error| panic!("{} failed: {error}", self.choice.kind()))
    }

    /// Wakes the coroutines, and queues the callbacks, that waited for what has happened. Returns whether there are any.
    #[inline]
    fn tell_fired(&self, mut fired: Vec<Waiter>) -> bool {
        if fired.is_empty() {
            return false;
        }
        // Our own coroutines.
        let mut woken = Ready { shared: self, list: WokenList::new() };
        for waiter in fired.drain(..) {
            match waiter {
                Waiter::Waker(waker) => {
                    if let Some(turn) = wake_at(waker, self) {
                        woken.list.push_back(turn);
                    }
                }
                Waiter::Handler(node, side) => {
                    node.fired(side);
                    self.with_local(|local| local.due.push_back(Due::Handler(node, side)));
                }
                Waiter::Timer(node) => {
                    self.with_local(|local| local.due.push_back(Due::Timer(node)));
                }
                Waiter::Bypass(number) => {
                    self.with_local(|local| {
                        if let Some(bypass) = local.bypasses.remove(number) {
                            local.done.push_back(bypass);
                        }
                    });
                }
            }
        }
        self.with_local(|local| {
            local.ready.append(&mut woken.list);
            // The memory is kept for the next turn.
            fired.append(&mut local.fired);
            local.fired = fired;
        });
        true
    }

    /// Runs the bottom halves that have been scheduled, and those that an outer turn has not run yet. Returns whether
    /// there was progress.
    fn run_bottom_halves(&self) -> bool {
        let mut progress = false;
        while let Some(entry) = self.with_local(|local| local.bottom_halves.pop()).flatten() {
            progress |= entry.run();
        }
        progress
    }

    /// Runs the callbacks that are due, and those that an outer turn has not run yet. Returns whether there were any.
    fn run_due(self: &Arc<Self>) -> bool {
        // What becomes due from here on has its turn next time, unless a nested turn comes first.
        let count = self.with_local(|local| local.due.len()).unwrap_or_default();
        let mut progress = false;
        for _ in 0..count {
            // Not returned but stored: what is moved byte by byte can't be read back as words at once.
            let mut due = None;
            self.with_local(|local| due = local.due.pop_front());
            let Some(due) = due else { break };
            progress = true;
            match due {
                Due::Handler(node, side) => node.run(side, self),
                Due::Polled(node) => node.run_source(),
                Due::Timer(node) => node.run(self),
            }
        }
        progress
    }

    /// Has requests without coroutines go on whose calls are done. Returns whether there are any.
    fn run_bypasses(self: &Arc<Self>) -> bool {
        let mut count = self.with_local(|local| local.done.len()).unwrap_or_default();
        if count == 0 {
            return false;
        }
        let context = Local::of(self.clone());
        let mut gone_on = 0;
        while gone_on < count {
            let Some(bypass) = self.with_local(|local| local.done.pop_front()).flatten() else { break };
            bypass.go_on(&context);
            gone_on += 1;
            // What is done from here on has its turn next time, unless a nested turn comes first, or nobody else is there
            // whose turn it could be.
            if gone_on == count && gone_on < MAX_INLINE as usize {
                count += self.with_local(|local| local.done_alone()).unwrap_or_default();
            }
        }
        true
    }

    /// Runs the coroutines that are ready.
    #[inline(always)]
    fn run_ready(&self, list: WokenList) {
        let mut ready = Ready { shared: self, list };
        for woken in ready.list.by_ref() {
            woken.run();
        }
    }
}

/// How a turn begins.
enum Plan {
    /// There is something to run, and it isn't long since the monitor was asked.
    Run,
    /// The monitor is asked, and may sleep for so long.
    Wait(Option<Duration>),
    /// The same, after adaptive polling.
    PollFirst(Option<Duration>),
}

/// What a turn has to run.
enum Next {
    /// Bottom halves, or callbacks that are due.
    Callbacks,
    Coroutines(WokenList),
    Nothing,
}

/// Why a wait has ended.
pub(super) struct Seen {
    /// How many of those who fired waited for descriptors: the first ones.
    pub(super) descriptors: usize,
    /// Whether other threads had work.
    pub(super) told: bool,
}

impl Loop {
    fn plan(&mut self, shared: &Shared, blocking: bool) -> Plan {
        self.listen(shared);
        self.bottom_halves.refill(&shared.scheduled);
        // What the kernel carries out at once is something to run. An error comes again with the wait.
        let _ = self.linux_aio.exchange(&mut self.fired);
        let bottom_halves = self.bottom_halves.urgency();
        let busy = self.has_work(shared) || bottom_halves == Urgency::Now;
        if busy && self.busy_turns < MAX_BUSY_TURNS {
            return Plan::Run;
        }
        if busy || !blocking {
            return Plan::Wait(Some(Duration::ZERO));
        }
        let mut timeout = self.timers.timeout();
        if let Some(attempt) = self.linux_aio.next_attempt() {
            let pause = attempt.saturating_duration_since(Instant::now());
            timeout = Some(timeout.map_or(pause, |timeout| timeout.min(pause)));
        }
        if bottom_halves == Urgency::Idle {
            timeout = Some(timeout.map_or(IDLE_WAIT, |timeout| timeout.min(IDLE_WAIT)));
        }
        if self.parameters.polling.is_on() { Plan::PollFirst(timeout) } else { Plan::Wait(timeout) }
    }

    /// Whether there is something to run, bottom halves apart.
    fn has_work(&self, shared: &Shared) -> bool {
        let is_idle = self.ready.is_empty() && self.fired.is_empty() && self.due.is_empty() && self.done.is_empty();
        !is_idle || !shared.pushed.is_empty()
    }

    /// How many requests without coroutines are to go on, if there is nothing else to run, as far as this thread knows.
    fn done_alone(&self) -> usize {
        let others = [self.ready.is_empty(), self.fired.is_empty(), self.due.is_empty(), self.bottom_halves.is_empty()];
        if others == [true; 4] { self.done.len() } else { 0 }
    }

    /// Whether there are callbacks to run, of whatever kind.
    fn has_callbacks(&mut self, shared: &Shared) -> bool {
        self.bottom_halves.refill(&shared.scheduled);
        !self.bottom_halves.is_empty() || !self.due.is_empty() || !self.done.is_empty()
    }

    /// Whether user code that ran since the turn was planned has left something to run.
    pub(super) fn has_more_work(&mut self, shared: &Shared) -> bool {
        self.bottom_halves.refill(&shared.scheduled);
        self.has_work(shared) || self.bottom_halves.urgency() == Urgency::Now
    }

    fn take_fired(&mut self) -> Vec<Waiter> {
        if self.fired.is_empty() { Vec::new() } else { mem::take(&mut self.fired) }
    }

    /// What is to be run after the wait.
    fn next(&mut self, shared: &Shared) -> Next {
        if self.has_callbacks(shared) { Next::Callbacks } else { self.next_coroutines(shared) }
    }

    /// What is to be run after the callbacks. Coroutines that become ready from here on have their turn next time.
    fn next_coroutines(&mut self, shared: &Shared) -> Next {
        if !shared.pushed.is_empty() {
            self.ready.append(&mut shared.pushed.take_all());
        }
        if self.ready.is_empty() {
            self.monitor.flush();
            return Next::Nothing;
        }
        self.share_inline_requests();
        Next::Coroutines(mem::take(&mut self.ready))
    }

    /// Looks at the clock instead of waiting.
    pub(super) fn skip_wait(&mut self, shared: &Shared) -> io::Result<Seen> {
        self.busy_turns += 1;
        if self.monitor.has_requests() {
            // The kernel goes to work while coroutines run. An error comes again with the next wait, which reports it.
            let _ = self.monitor.submit();
        }
        self.linux_aio.exchange(&mut self.fired)?;
        Ok(self.look_around(shared))
    }

    /// Asks the monitor, which may sleep; the clock; and what other threads have to say.
    pub(super) fn wait(&mut self, shared: &Shared, timeout: Option<Duration>) -> io::Result<Seen> {
        self.busy_turns = 0;
        // Those who polled may have made requests.
        self.linux_aio.exchange(&mut self.fired)?;
        // A loop that watches nothing sleeps without its monitor; but a ring keeps deadlines better.
        if timeout.is_none() && self.fired.is_empty() && self.monitor.watches_nothing() && self.linux_aio.is_idle() {
            self.rests += 1;
            if shared.notify.announce_sleep(Sleep::Resting) {
                futex::wait(shared.notify.word(), Sleep::Resting as u32, None);
            }
            return Ok(self.look_around(shared));
        }
        let is_idle = self.fired.is_empty() && timeout != Some(Duration::ZERO);
        let may_sleep = is_idle && shared.notify.announce_sleep(Sleep::Watching);
        let (timeout, batch) = match may_sleep {
            true => (timeout, self.parameters.coalescing.batch()),
            false => (Some(Duration::ZERO), Batch::ONE),
        };
        let waited = self.monitor.wait(timeout, batch, &mut self.fired);
        // After the notifier was cleared: who completes something from here on signals it again.
        let exchanged = self.linux_aio.exchange(&mut self.fired);
        let seen = self.look_around(shared);
        waited.and(exchanged).map(|()| seen)
    }

    /// Accepts what other threads have told the loop, and looks at the clock.
    fn look_around(&mut self, shared: &Shared) -> Seen {
        let descriptors = self.fired.len();
        let told = self.listen(shared);
        self.timers.expire(&mut self.fired);
        Seen { descriptors, told }
    }

    /// Accepts what other threads have told the loop. Returns whether there is work.
    fn listen(&mut self, shared: &Shared) -> bool {
        let reasons = shared.notify.accept();
        if reasons.has(Reason::Parameters) {
            self.parameters = shared.parameters();
            self.sources.reset();
        }
        reasons.has(Reason::Work)
    }
}

impl Coalescing {
    fn batch(self) -> Batch {
        Batch { size: self.events, longest: self.longest }
    }
}

/// Coroutines whose turn it is. If one of them panics, the others keep their turn.
struct Ready<'a> {
    shared: &'a Shared,
    list: WokenList,
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        if !self.list.is_empty() {
            self.shared.with_local(|local| {
                self.list.append(&mut local.ready);
                mem::swap(&mut self.list, &mut local.ready);
            });
        }
    }
}
