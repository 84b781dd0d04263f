//! Many requests, and one wait for some of them.
//!
//! # Safety
//!
//! A member has a [`Place`] of its own, so its request stays where it is; the buffer that it names is borrowed for longer
//! than [`group`] runs. Before `group` returns or unwinds it finishes all members that are pending. So nobody gets at a
//! buffer, or frees it, while the kernel has it. A `Group` can't be leaked to prevent that: callers only ever see a
//! reference. Its lifetime is invariant, so that nothing is lent to it that lives shorter.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::file::File;
use super::perform::{CANCELLED, Caller, Carrier, Tried, cancel, finish, let_others, start, try_at_once};
use super::place::Place;
use super::transfer::{Advance, Target, Transfer};
use crate::aio::Local;
use crate::aio::request::{OnDone, Request, Tally};
use crate::coroutine::{park_for_own, unwind_cancelled};
use crate::park;

/// Runs `f` with a group, to which it adds requests and waits for as many of them as it likes. Requests that are still
/// under way when `f` returns are cancelled, as far as they can be, and waited for.
///
/// ```
/// use aioco::{AioContext, block};
/// use std::fs::File;
///
/// let context = AioContext::new()?;
/// # let path = std::env::current_exe()?;
/// let file = block::File::new(File::open(path)?)?;
/// let mut buffers = [[0; 512]; 8];
/// context.block_on(|| {
///     block::group(|group| {
///         for (buffer, block) in buffers.iter_mut().zip(0..) {
///             group.read_at(&file, buffer, block * 512);
///         }
///         group.wait(4); // one wake-up, when four of the eight are done
///         while let Some((number, result)) = group.take() {
///             assert!(number < 8 && result.is_ok());
///         }
///         group.wait_all();
///     });
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// If `f` panics, with its payload, after requests that are under way are done.
pub fn group<'env, R>(f: impl FnOnce(&Group<'env>) -> R) -> R {
    let group =
        Group { caller: Caller::current(), tally: Arc::default(), members: RefCell::default(), env: PhantomData };
    // Its drop finishes what is pending.
    f(&group)
}

/// Requests that are waited for together. See [`group`].
pub struct Group<'env> {
    caller: Caller,
    /// Counts completions.
    tally: Arc<Tally>,
    members: RefCell<Members<'env>>,
    env: PhantomData<Cell<&'env ()>>,
}

#[derive(Default)]
struct Members<'env> {
    /// Those that are pending.
    pending: Vec<Place<Member<'env>>>,
    /// Results that haven't been taken, in the order in which they were seen.
    results: VecDeque<(usize, io::Result<usize>)>,
    added: usize,
    finished: usize,
    /// Completions that have been looked at.
    seen: usize,
}

struct Member<'env> {
    number: usize,
    target: Target<'env>,
    transfer: Transfer,
    request: Request,
    carrier: Cell<Carrier>,
}

impl Member<'_> {
    fn advance(&mut self, result: i64) -> io::Result<Advance> {
        self.transfer.advance(self.target, result)
    }
}

impl<'env> Group<'env> {
    /// Adds a read; as [`File::read_at`]. Returns its number: they are counted from 0.
    pub fn read_at<F: AsFd>(&self, file: &'env File<F>, buffer: &'env mut [u8], offset: u64) -> usize {
        self.add(file.target(), Transfer::read(buffer, offset))
    }

    /// Adds a write; as [`File::write_all_at`]. Returns its number.
    pub fn write_all_at<F: AsFd>(&self, file: &'env File<F>, buffer: &'env [u8], offset: u64) -> usize {
        self.add(file.target(), Transfer::write(buffer, offset, 0))
    }

    /// Waits until at least `count` of the requests are done, or all, if there are fewer; counting also those whose
    /// results have been taken. The caller parks, and is woken once, when that many have completed. Returns how many are
    /// done.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn wait(&self, count: usize) -> usize {
        loop {
            self.look();
            let (finished, wanted) = {
                let members = self.members.borrow();
                let missing = count.min(members.added).saturating_sub(members.finished);
                (members.finished, if missing == 0 { None } else { Some(members.seen + missing) })
            };
            let Some(wanted) = wanted else { return finished };
            if !self.tally.want(wanted, park::waker()) && park_for_own(false) {
                self.cancel();
            }
        }
    }

    /// Waits until all requests are done. Returns how many there are.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_all(&self) -> usize {
        self.wait(usize::MAX)
    }

    /// Takes a result, if there is one: the request's number, and how much was moved. First come first, as far as was
    /// seen.
    ///
    /// Doesn't wait.
    pub fn take(&self) -> Option<(usize, io::Result<usize>)> {
        let result = self.members.borrow_mut().results.pop_front();
        if result.is_some() {
            return result;
        }
        self.look();
        self.members.borrow_mut().results.pop_front()
    }

    /// Has all requests cancelled, parks until they are done, and unwinds the coroutine, which has been cancelled.
    fn cancel(&self) -> ! {
        let wanted = {
            let mut members = self.members.borrow_mut();
            let is_left = |member: &Place<Member<'_>>| {
                let is_done = member.request.result().is_some();
                is_done || !cancel(self.caller.context(), member.carrier.get(), &member.request)
            };
            members.pending.retain(is_left);
            members.seen + members.pending.len()
        };
        while !self.tally.want(wanted, park::waker()) {
            park_for_own(true);
        }
        unwind_cancelled()
    }

    fn add(&self, target: Target<'env>, transfer: Transfer) -> usize {
        let number = {
            let mut members = self.members.borrow_mut();
            members.added += 1;
            members.added - 1
        };
        let checked = target.check(&transfer);
        let member = Place::new(Member {
            number,
            target,
            transfer,
            request: Request::new(),
            carrier: Cell::new(Carrier::Worker),
        });
        match checked {
            Ok(()) => self.go_on(member),
            Err(error) => self.finish(number, Err(error)),
        }
        let_others(&self.caller);
        number
    }

    /// Makes the member's next call, and those after that, as long as they are carried out at once.
    fn go_on(&self, mut member: Place<Member<'env>>) {
        loop {
            let Some(call) = member.transfer.next(member.target) else {
                return self.finish(member.number, Ok(member.transfer.done()));
            };
            let context = self.caller.context();
            let Member { target, transfer, request, .. } = &mut *member;
            // SAFETY: see the head, here and below.
            let result = match unsafe { try_at_once(target.policy, transfer.operation(), call) } {
                Tried::Done(result) => {
                    context.into_iter().for_each(Local::count_block_call);
                    result
                }
                // SAFETY: as above.
                Tried::No if matches!(self.caller, Caller::Blocking) => unsafe { call.run() },
                Tried::No => {
                    let on_done = |_| OnDone::Count(self.tally.clone());
                    // SAFETY: as above.
                    match unsafe { start(context, target.policy, transfer.operation(), call, request, on_done) } {
                        Some(carrier) => {
                            member.carrier.set(carrier);
                            self.members.borrow_mut().pending.push(member);
                            return;
                        }
                        None => CANCELLED,
                    }
                }
            };
            match member.advance(result) {
                Ok(Advance::Ended) => return self.finish(member.number, Ok(member.transfer.done())),
                Ok(Advance::Moved | Advance::Again) => {}
                Err(error) => return self.finish(member.number, Err(error)),
            }
        }
    }

    fn finish(&self, number: usize, result: io::Result<usize>) {
        let mut members = self.members.borrow_mut();
        members.finished += 1;
        members.results.push_back((number, result));
    }

    /// Looks at what has completed since the last time.
    fn look(&self) {
        let completed = self.tally.done();
        let mut done = Vec::new();
        {
            let mut members = self.members.borrow_mut();
            if members.seen == completed {
                return;
            }
            let mut index = 0;
            while index < members.pending.len() {
                if members.pending[index].request.result().is_some() {
                    done.push(members.pending.swap_remove(index));
                } else {
                    index += 1;
                }
            }
            members.seen += done.len();
        }
        for mut member in done {
            let result = member.request.result().expect("seen above");
            match member.advance(result) {
                Ok(Advance::Ended) => self.finish(member.number, Ok(member.transfer.done())),
                Ok(Advance::Moved | Advance::Again) => self.go_on(member),
                Err(error) => self.finish(member.number, Err(error)),
            }
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        for member in &self.members.get_mut().pending {
            if member.request.result().is_none() {
                finish(self.caller.context(), member.carrier.get(), &member.request);
            }
        }
    }
}

impl fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("added", &self.members.borrow().added).finish_non_exhaustive()
    }
}
