//! Descriptors that a ring watches for good: the state of their polls, and who waits.
//!
//! Each has a multishot poll, which tells that the descriptor has *become* ready, however often, without being asked anew.
//! An event that nobody waits for is remembered, for those who ask for what has been since somebody was last told. A poll
//! that the kernel ends (completions found no room) is begun anew by the next who waits; it then tells at once if the
//! descriptor is ready. One that the kernel refuses (before Linux 5.13) is not tried again.

use std::os::fd::RawFd;

use super::super::slab::Slab;
use super::super::waiter::Waiter;
use super::Side;
use crate::coroutine::Since;

/// Descriptors that are watched for good.
#[derive(Debug)]
pub(super) struct KeptPolls {
    polls: Slab<KeptPoll>,
    /// Who waits for one of them.
    waiters: Slab<Waiter>,
}

#[derive(Debug)]
struct KeptPoll {
    fd: RawFd,
    side: Side,
    state: State,
    /// Whether there was an event since somebody was told of one.
    has_missed: bool,
    /// Whether it has shown a hang-up or an error, which may have been told together with something else.
    has_trouble: bool,
    /// Who waits for the next event, and some who don't any more.
    waiting: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The kernel polls.
    Armed,
    /// It has ended.
    Ended,
    /// The kernel can't do that.
    Refused,
}

/// A poll that the ring is to begin.
#[derive(Debug)]
pub(super) struct ToArm {
    pub(super) number: u64,
    pub(super) fd: RawFd,
    pub(super) side: Side,
}

impl KeptPolls {
    pub(super) const fn new() -> Self {
        Self { polls: Slab::new(), waiters: Slab::new() }
    }

    /// Whether nobody waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiters.len() == 0
    }

    /// Adds a descriptor, whose poll the caller begins.
    pub(super) fn insert(&mut self, fd: RawFd, side: Side) -> ToArm {
        let poll =
            KeptPoll { fd, side, state: State::Armed, has_missed: false, has_trouble: false, waiting: Vec::new() };
        ToArm { number: self.polls.insert(poll), fd, side }
    }

    /// Has somebody wait for an event. Returns the watch's number, and the poll if it is to begin anew; or who was to wait,
    /// if the descriptor isn't watched any more.
    #[inline]
    pub(super) fn watch(
        &mut self,
        number: u64,
        since: Since,
        waiter: Waiter,
        fired: &mut Vec<Waiter>,
    ) -> Result<(u64, Option<ToArm>), Waiter> {
        let Some(poll) = self.polls.get_mut(number).filter(|poll| poll.state != State::Refused) else {
            return Err(waiter);
        };
        let watch = self.waiters.insert(waiter);
        let has_missed = std::mem::take(&mut poll.has_missed);
        if since == Since::LastTold && (has_missed || poll.has_trouble) {
            fired.extend(self.waiters.remove(watch));
            return Ok((watch, None));
        }
        if poll.waiting.len() == poll.waiting.capacity() {
            poll.waiting.retain(|&watch| self.waiters.get_mut(watch).is_some());
        }
        poll.waiting.push(watch);
        let is_over = std::mem::replace(&mut poll.state, State::Armed) == State::Ended;
        Ok((watch, is_over.then_some(ToArm { number, fd: poll.fd, side: poll.side })))
    }

    /// Nobody waits for this watch any more. Returns who did, unless it has fired.
    #[inline]
    pub(super) fn unwatch(&mut self, watch: u64) -> Option<Waiter> {
        self.waiters.remove(watch)
    }

    /// Removes a descriptor; those who wait are told. Returns whether the caller has to end its poll.
    pub(super) fn remove(&mut self, number: u64, fired: &mut Vec<Waiter>) -> bool {
        let Some(poll) = self.polls.withdraw(number) else { return false };
        fired.extend(poll.waiting.into_iter().filter_map(|watch| self.waiters.remove(watch)));
        let is_armed = poll.state == State::Armed;
        if !is_armed {
            self.polls.remove(number);
        }
        is_armed
    }

    /// The kernel tells of an event, and whether it goes on. Returns whether somebody is told.
    #[inline]
    pub(super) fn on_event(&mut self, number: u64, result: i32, goes_on: bool, fired: &mut Vec<Waiter>) -> bool {
        let Some(poll) = self.polls.get_mut(number) else {
            if !goes_on {
                // It has been removed; its number is free now.
                self.polls.remove(number);
            }
            return false;
        };
        if !goes_on {
            poll.state = if result < 0 { State::Refused } else { State::Ended };
        }
        poll.has_missed = true;
        poll.has_trouble |= result & !i32::from(libc::POLLIN | libc::POLLOUT) != 0;
        for watch in poll.waiting.drain(..) {
            if let Some(waiter) = self.waiters.remove(watch) {
                fired.push(waiter);
                poll.has_missed = false;
            }
        }
        !poll.has_missed
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::{KeptPolls, Side, State};
    use crate::aio::waiter::Waiter;
    use crate::coroutine::Since;

    fn waiter() -> Waiter {
        Waiter::Waker(Waker::noop().clone())
    }

    const EVENT: i32 = libc::POLLIN as i32;

    #[test]
    fn each_event_is_told_to_all_who_wait_or_remembered_once() {
        let (mut polls, mut fired) = (KeptPolls::new(), Vec::new());
        let number = polls.insert(3, Side::Input).number;
        let mut watch = |polls: &mut KeptPolls, since, told: usize| {
            let (watch, to_arm) = polls.watch(number, since, waiter(), &mut fired).expect("it is watched");
            assert!(to_arm.is_none(), "it is armed");
            assert_eq!(fired.drain(..).count(), told);
            watch
        };
        watch(&mut polls, Since::Now, 0);
        let withdrawn = watch(&mut polls, Since::LastTold, 0);
        watch(&mut polls, Since::LastTold, 0);
        assert!(polls.unwatch(withdrawn).is_some() && polls.unwatch(withdrawn).is_none());
        let mut told = Vec::new();
        assert!(polls.on_event(number, EVENT, true, &mut told));
        assert_eq!(told.len(), 2);
        assert!(polls.is_idle());
        // Nobody waits: two events are one, which is told to whom it is news.
        assert!(!polls.on_event(number, EVENT, true, &mut told) && !polls.on_event(number, EVENT, true, &mut told));
        watch(&mut polls, Since::LastTold, 1);
        let unaware = watch(&mut polls, Since::LastTold, 0);
        polls.unwatch(unaware);
        // Who has left is told nothing, and the event is remembered; who has just looked need not know.
        assert!(!polls.on_event(number, EVENT, true, &mut told));
        watch(&mut polls, Since::Now, 0);
        assert_eq!(told.len(), 2);
    }

    #[test]
    fn a_poll_that_ends_is_begun_anew_and_one_that_is_refused_is_not() {
        let (mut polls, mut fired) = (KeptPolls::new(), Vec::new());
        let number = polls.insert(3, Side::Output).number;
        let mut watch = |polls: &mut KeptPolls| polls.watch(number, Since::LastTold, waiter(), &mut fired);
        watch(&mut polls).expect("it is watched");
        let mut told = Vec::new();
        assert!(polls.on_event(number, EVENT, false, &mut told));
        let (_, to_arm) = watch(&mut polls).expect("it is watched");
        assert_eq!(to_arm.map(|poll| (poll.number, poll.fd)), Some((number, 3)));
        assert!(watch(&mut polls).expect("it is watched").1.is_none(), "once is enough");
        assert!(polls.on_event(number, -libc::EINVAL, false, &mut told));
        assert_eq!(told.len(), 3);
        assert!(watch(&mut polls).is_err());
        assert!(!polls.remove(number, &mut told), "there is nothing to end");
        assert!(watch(&mut polls).is_err());
    }

    #[test]
    fn a_number_is_not_used_again_before_its_poll_has_ended() {
        let (mut polls, mut told) = (KeptPolls::new(), Vec::new());
        let number = polls.insert(3, Side::Input).number;
        polls.watch(number, Since::Now, waiter(), &mut told).expect("it is watched");
        assert!(polls.remove(number, &mut told) && !polls.remove(number, &mut told));
        assert_eq!(told.len(), 1, "who waits is told");
        let other = polls.insert(4, Side::Input).number;
        assert!(
            !polls.on_event(number, EVENT, true, &mut told)
                && !polls.on_event(number, -libc::ECANCELED, false, &mut told)
        );
        assert_eq!(polls.polls.get_mut(other).map(|poll| poll.state), Some(State::Armed));
    }
}
