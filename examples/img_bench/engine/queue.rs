//! The Linux AIO engine: slots that queue requests, and two coroutines that serve them.
//!
//! A request is **queued** by its slot, **handed over** to the kernel by the *submitter*, and **reaped** by the
//! *reaper*, which wakes the slot's coroutine. Requests that are made in one turn of the loop go out in one system
//! call. What keeps any from being forgotten:
//!
//! 1. Whoever makes the queue non-empty wakes the submitter.
//! 2. The submitter yields once before it takes the queue, so that whoever else can run now (all those that the reaper
//!    has just woken, say) adds its request to the batch.
//! 3. The submitter parks only if the queue is empty, or if the kernel has refused more for now while requests are in
//!    flight. The reaper wakes it in the second case, as soon as one of those is done.
//! 4. If the kernel refuses while nothing is in flight, no completion will come: the submitter tries again from a
//!    timer, and after [`PATIENCE`] fails the requests in the queue with that refusal.
//! 5. The reaper clears the eventfd *before* it looks for completions, and takes all there are: what it doesn't see
//!    has yet to signal.
//!
//! So when the loop sleeps, each request is either in the kernel, or waits for one that is, or for a timer. Completions
//! only wake coroutines, and these run from the loop: a chain of requests that complete at once needs no stack.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use aioco::{AioContext, JoinHandle};
use parking_lot::Mutex;

use super::linux_aio::{Context, Request};
use super::{Direction, SystemCalls};

/// How long the kernel may refuse requests while it has none, until that is an error.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time between two attempts meanwhile.
const PAUSE: Duration = Duration::from_millis(1);

/// The engine's two coroutines.
pub struct Queue {
    shared: Arc<Shared>,
    reaper: JoinHandle<()>,
    submitter: JoinHandle<()>,
}

/// One coroutine's place in the queue.
///
/// Its block belongs to the kernel's [`Context`], and stays there if the coroutine is unwound in the middle of a
/// request.
pub struct Slot {
    shared: Arc<Shared>,
    index: usize,
}

struct Shared {
    /// Counts completions, and one more when the submitter ends.
    completions: Arc<File>,
    state: Mutex<State>,
}

struct State {
    kernel: Context,
    /// Requests that the kernel hasn't got yet, in the order they were made.
    queue: VecDeque<Request>,
    phases: Vec<Phase>,
    submitter: Option<Waker>,
    /// The kernel would take no more; a completion makes it worth another try.
    refused: bool,
    /// No more requests will be made.
    stopping: bool,
    /// The submitter has ended.
    all_handed_over: bool,
    /// Completions can't be waited for any more, hence no request can be taken.
    broken: bool,
    eventfd_reads: u64,
}

/// What a slot's coroutine waits for.
enum Phase {
    Idle,
    Waiting(Waker),
    Done(io::Result<usize>),
}

impl Queue {
    /// Spawns the engine's coroutines on `context`.
    pub fn start(context: &AioContext, kernel: Context) -> io::Result<(Queue, Vec<Slot>)> {
        let slots = kernel.slots();
        let shared = Arc::new(Shared {
            completions: Arc::clone(kernel.completions()),
            state: Mutex::new(State {
                kernel,
                queue: VecDeque::with_capacity(slots),
                phases: (0..slots).map(|_| Phase::Idle).collect(),
                submitter: None,
                refused: false,
                stopping: false,
                all_handed_over: false,
                broken: false,
                eventfd_reads: 0,
            }),
        });
        let submitter = context.spawn({
            let shared = Arc::clone(&shared);
            move || shared.submitter()
        })?;
        let reaper = context.spawn({
            let shared = Arc::clone(&shared);
            move || shared.reaper()
        });
        let reaper = reaper.inspect_err(|_| shared.stop())?;
        let slots = (0..slots).map(|index| Slot { shared: Arc::clone(&shared), index }).collect();
        Ok((Queue { shared, reaper, submitter }, slots))
    }

    /// Waits for the end of the engine's coroutines. No request may be under way.
    pub fn finish(self) -> SystemCalls {
        self.shared.stop();
        for coroutine in [self.reaper, self.submitter] {
            coroutine.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let state = self.shared.state.lock();
        SystemCalls { eventfd_read: state.eventfd_reads, ..state.kernel.calls() }
    }
}

impl Slot {
    /// Moves the slot's block from or to the file; parks the coroutine meanwhile.
    pub fn transfer(&mut self, direction: Direction, offset: u64) -> io::Result<usize> {
        self.enqueue(Request { slot: self.index, direction, offset })?;
        loop {
            if let Some(result) = self.take_result() {
                return result;
            }
            aioco::park::park();
        }
    }

    fn enqueue(&mut self, request: Request) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        if state.broken {
            return Err(io::Error::other("the engine has broken down"));
        }
        if !matches!(state.phases[self.index], Phase::Idle) {
            return Err(io::Error::other("an earlier request on this slot was abandoned"));
        }
        state.phases[self.index] = Phase::Waiting(aioco::park::waker());
        state.queue.push_back(request);
        let submitter = if state.queue.len() == 1 { state.submitter.clone() } else { None };
        drop(state);
        if let Some(submitter) = submitter {
            submitter.wake();
        }
        Ok(())
    }

    fn take_result(&mut self) -> Option<io::Result<usize>> {
        let phase = &mut self.shared.state.lock().phases[self.index];
        match std::mem::replace(phase, Phase::Idle) {
            Phase::Done(result) => Some(result),
            waiting => {
                *phase = waiting;
                None
            }
        }
    }

    /// Lends the slot's block out.
    pub fn with_block<R>(&mut self, use_it: impl FnOnce(&mut [u8]) -> R) -> R {
        use_it(self.shared.state.lock().kernel.block(self.index))
    }
}

impl Shared {
    /// The coroutine that hands queued requests to the kernel.
    fn submitter(&self) {
        let mut refused_since = None;
        while self.wait_for_requests() {
            aioco::yield_now();
            match self.hand_over() {
                HandOver::Complete | HandOver::RefusedWhileBusy => refused_since = None,
                HandOver::RefusedWhileIdle => {
                    let now = Instant::now();
                    if now - *refused_since.get_or_insert(now) < PATIENCE {
                        aioco::park::park_until(now + PAUSE);
                    } else {
                        refused_since = None;
                        self.fail_queue(&io::Error::from_raw_os_error(libc::EAGAIN));
                    }
                }
            }
        }
        // Nothing will be handed over any more: the reaper may end after what is in flight.
        self.state.lock().all_handed_over = true;
        self.signal_reaper();
    }

    /// Parks until there is something to hand over, or nothing will be: then it returns false.
    fn wait_for_requests(&self) -> bool {
        loop {
            let mut state = self.state.lock();
            state.submitter.get_or_insert_with(aioco::park::waker);
            match (state.queue.is_empty(), state.refused) {
                (true, _) if state.stopping => return false,
                (false, false) => return true,
                _ => drop(state),
            }
            aioco::park::park();
        }
    }

    fn hand_over(&self) -> HandOver {
        let mut woken = Vec::new();
        let outcome = {
            let mut state = self.state.lock();
            let State { queue, kernel, phases, refused, .. } = &mut *state;
            let fail = |request: Request, error| woken.extend(phases[request.slot].finish(Err(error)));
            let complete = feed(queue, |batch| kernel.submit(batch), fail);
            match (complete, kernel.in_flight()) {
                (true, _) => HandOver::Complete,
                (false, 0) => HandOver::RefusedWhileIdle,
                (false, _) => {
                    *refused = true;
                    HandOver::RefusedWhileBusy
                }
            }
        };
        woken.into_iter().for_each(Waker::wake);
        outcome
    }

    /// The coroutine that waits for completions, and passes them on to who waits for them.
    fn reaper(&self) {
        let mut woken = Vec::new();
        while !self.all_done() {
            let reaped = self.reap_when_signalled(&mut woken);
            woken.drain(..).for_each(Waker::wake);
            if let Err(error) = reaped {
                return self.break_down(&error);
            }
        }
    }

    fn all_done(&self) -> bool {
        let state = self.state.lock();
        state.all_handed_over && state.kernel.in_flight() == 0
    }

    fn reap_when_signalled(&self, woken: &mut Vec<Waker>) -> io::Result<()> {
        aioco::fd::wait_readable(&*self.completions)?;
        let read = (&*self.completions).read(&mut [0; 8]);
        if let Err(error) = read
            && error.kind() != io::ErrorKind::WouldBlock
        {
            return Err(error);
        }

        let mut state = self.state.lock();
        state.eventfd_reads += 1;
        let State { kernel, phases, queue, refused, submitter, .. } = &mut *state;
        let before = kernel.in_flight();
        kernel.reap(|slot, result| woken.extend(phases[slot].finish(result)))?;
        if kernel.in_flight() < before && std::mem::take(refused) && !queue.is_empty() {
            woken.extend(submitter.clone());
        }
        Ok(())
    }

    /// After this, no request is under way, and none will be taken.
    fn break_down(&self, error: &io::Error) {
        self.state.lock().broken = true;
        self.fail_queue(error);
        let mut woken = Vec::new();
        {
            let mut state = self.state.lock();
            let State { kernel, phases, .. } = &mut *state;
            let drained = kernel.drain(|slot, result| woken.extend(phases[slot].finish(result)));
            if drained.is_err() {
                // The kernel keeps the blocks; those who wait for them learn of it here.
                woken.extend(phases.iter_mut().filter_map(|phase| phase.finish(Err(copy_of(error)))));
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }

    fn fail_queue(&self, error: &io::Error) {
        let mut state = self.state.lock();
        let State { queue, phases, .. } = &mut *state;
        let woken: Vec<_> =
            queue.drain(..).filter_map(|request| phases[request.slot].finish(Err(copy_of(error)))).collect();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    fn stop(&self) {
        let submitter = {
            let mut state = self.state.lock();
            state.stopping = true;
            state.submitter.clone()
        };
        if let Some(submitter) = submitter {
            submitter.wake();
        }
    }

    fn signal_reaper(&self) {
        // Can fail only if the counter is full, and then the reaper has its signal.
        let _ = (&*self.completions).write(&1u64.to_ne_bytes());
    }
}

/// What came of the attempt to hand over the queue.
enum HandOver {
    Complete,
    /// The kernel takes no more until something in flight is done.
    RefusedWhileBusy,
    /// The kernel takes nothing, and has nothing.
    RefusedWhileIdle,
}

/// Passes `queue` to `submit` until it is empty, or until `submit` refuses more for now: then it returns false.
///
/// `submit` returns how many requests it took from the first on, or an error about the first. That one alone `fail`s,
/// and the rest goes on.
fn feed(
    queue: &mut VecDeque<Request>,
    mut submit: impl FnMut(&[Request]) -> io::Result<usize>,
    mut fail: impl FnMut(Request, io::Error),
) -> bool {
    loop {
        let batch: &[Request] = queue.make_contiguous();
        let Some(&first) = batch.first() else {
            return true;
        };
        match submit(batch) {
            Ok(0) => return false,
            Ok(taken) => drop(queue.drain(..taken)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                queue.pop_front();
                fail(first, error);
            }
        }
    }
}

impl Phase {
    /// Keeps the result for whoever waits for it, and returns how to wake that coroutine.
    fn finish(&mut self, result: io::Result<usize>) -> Option<Waker> {
        match std::mem::replace(self, Phase::Idle) {
            Phase::Waiting(waker) => {
                *self = Phase::Done(result);
                Some(waker)
            }
            other => {
                *self = other;
                None
            }
        }
    }
}

fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::linux_aio::tests::{PATTERN, context, patterned_file};
    use super::*;

    const BLOCK: u64 = 512;

    fn errno(code: i32) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(code))
    }

    /// Who was accepted, who failed with what, who is left, and whether the queue was passed on completely.
    type Fates = (Vec<usize>, Vec<(usize, i32)>, Vec<usize>, bool);

    /// Hands over requests 0..`n` to a kernel with these answers.
    fn hand_over_to(answers: Vec<io::Result<usize>>, n: usize) -> Fates {
        let mut queue: VecDeque<_> =
            (0..n).map(|slot| Request { slot, direction: Direction::Read, offset: 0 }).collect();
        let (mut accepted, mut failed) = (Vec::new(), Vec::new());
        let mut answers = answers.into_iter();
        let complete = feed(
            &mut queue,
            |batch| {
                let answer = answers.next().expect("more calls than answers");
                if let Ok(taken) = answer {
                    accepted.extend(batch[..taken].iter().map(|request| request.slot));
                }
                answer
            },
            |request, error| failed.push((request.slot, error.raw_os_error().unwrap())),
        );
        assert!(answers.next().is_none(), "fewer calls than answers");
        (accepted, failed, queue.iter().map(|request| request.slot).collect(), complete)
    }

    #[test]
    fn all_taken_at_once() {
        assert_eq!(hand_over_to(vec![Ok(4)], 4), (vec![0, 1, 2, 3], vec![], vec![], true));
        assert_eq!(hand_over_to(vec![], 0), (vec![], vec![], vec![], true));
    }

    #[test]
    fn the_rest_of_a_batch_taken_in_part_follows_in_order() {
        assert_eq!(hand_over_to(vec![Ok(3), Ok(2)], 5), (vec![0, 1, 2, 3, 4], vec![], vec![], true));
    }

    #[test]
    fn what_is_refused_for_now_stays_in_order() {
        let expected = (vec![0, 1, 2], vec![], vec![3, 4], false);
        assert_eq!(hand_over_to(vec![Ok(3), errno(libc::EAGAIN)], 5), expected);
        assert_eq!(hand_over_to(vec![Ok(3), Ok(0)], 5), expected);
    }

    #[test]
    fn an_interrupted_call_is_made_again() {
        assert_eq!(hand_over_to(vec![errno(libc::EINTR), Ok(2)], 2), (vec![0, 1], vec![], vec![], true));
    }

    #[test]
    fn a_bad_request_fails_alone() {
        let answers = vec![Ok(1), errno(libc::EINVAL), errno(libc::EBADF), Ok(2)];
        let expected = (vec![0, 3, 4], vec![(1, libc::EINVAL), (2, libc::EBADF)], vec![], true);
        assert_eq!(hand_over_to(answers, 5), expected);
    }

    /// Runs `rounds` checked reads on each slot of `kernel`, and returns the results that were errors.
    fn read_on_all_slots(kernel: Context, rounds: u64) -> Vec<io::Error> {
        let blocks = kernel.slots() as u64;
        let context = AioContext::new().unwrap();
        context.block_on(|| {
            let (queue, slots) = Queue::start(&context, kernel).unwrap();
            let readers: Vec<_> = slots
                .into_iter()
                .map(|mut slot| {
                    let reader = move || {
                        (0..rounds)
                            .filter_map(|round| {
                                let offset = (slot.index as u64 + round) % blocks * BLOCK;
                                match slot.transfer(Direction::Read, offset) {
                                    Ok(len) => {
                                        assert_eq!(len as u64, BLOCK);
                                        slot.with_block(|block| PATTERN.check(offset, block)).unwrap();
                                        None
                                    }
                                    Err(error) => Some(error),
                                }
                            })
                            .collect::<Vec<_>>()
                    };
                    context.spawn(reader).unwrap()
                })
                .collect();
            let errors = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
            queue.finish();
            errors
        })
    }

    #[test]
    fn more_slots_than_the_kernel_takes_all_get_their_turn() {
        let slots = 1000;
        let Some(kernel) = context(patterned_file(512 * slots), 1, slots) else { return };
        assert!(read_on_all_slots(kernel, 20).is_empty());
    }

    #[test]
    fn requests_outlast_a_kernel_that_refuses_for_a_while() {
        let Some(mut kernel) = context(patterned_file(512 * 8), 8, 8) else { return };
        kernel.refusals = 20;
        assert!(read_on_all_slots(kernel, 1).is_empty());
    }

    #[test]
    fn a_kernel_that_refuses_for_good_is_an_error_to_all() {
        let Some(mut kernel) = context(patterned_file(512 * 8), 8, 8) else { return };
        kernel.refusals = usize::MAX;
        let errors = read_on_all_slots(kernel, 1);
        assert_eq!(errors.len(), 8);
        assert!(errors.iter().all(|error| error.raw_os_error() == Some(libc::EAGAIN)));
    }

    #[test]
    fn an_engine_that_breaks_down_leaves_nobody_waiting() {
        let Some(kernel) = context(patterned_file(512 * 8), 8, 8) else { return };
        let context = AioContext::new().unwrap();
        context.block_on(|| {
            let (queue, slots) = Queue::start(&context, kernel).unwrap();
            let readers: Vec<_> = slots
                .into_iter()
                .map(|mut slot| {
                    let until_it_fails = move || while slot.transfer(Direction::Read, 0).is_ok() {};
                    context.spawn(until_it_fails).unwrap()
                })
                .collect();
            (0..10).for_each(|_| aioco::yield_now());
            queue.shared.break_down(&io::Error::other("on purpose"));
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            assert_eq!(queue.shared.state.lock().kernel.in_flight(), 0);
            queue.finish();
        });
    }

    #[test]
    fn requests_of_one_turn_share_a_system_call() {
        let Some(kernel) = context(patterned_file(512 * 64), 64, 64) else { return };
        let context = AioContext::new().unwrap();
        let calls = context.block_on(|| {
            let (queue, slots) = Queue::start(&context, kernel).unwrap();
            let readers: Vec<_> = slots
                .into_iter()
                .map(|mut slot| context.spawn(move || slot.transfer(Direction::Read, 0).unwrap()).unwrap())
                .collect();
            readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), 512));
            queue.finish()
        });
        assert_eq!(calls.io_submit, 1);
    }
}
