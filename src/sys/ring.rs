//! A submission queue and a completion queue shared with the kernel: the only file that names the crate `io-uring`,
//! tests apart.
//!
//! Entries are queued here and go to the kernel with the next [`enter`](Ring::enter), which also waits. Nothing is
//! lost: an entry that finds the submission queue full waits in a list of our own, and a completion that finds its
//! queue full waits in the kernel (`IORING_FEAT_NODROP`). Both features that are needed, that one and
//! `IORING_FEAT_EXT_ARG`, are there since Linux 5.11.
//!
//! References: io_uring_setup(2), io_uring_enter(2), io_uring_register(2).
//!
//! # Safety
//!
//! An entry may let the kernel write to memory until its completion; whoever queues such a one keeps the memory
//! ([`read`](Ring::read), [`request`](Ring::request)). Memory that is registered is kept by whoever does so
//! ([`set_buffer`](Ring::set_buffer)). The other entries name descriptors and tokens only, which the kernel checks.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

use super::entrance::Entrance;
#[cfg(test)]
use super::fault;
use super::file::{Call, What};
use io_uring::squeue::Entry;
use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{Builder, EnterFlags, IoUring, cqueue, opcode, squeue};

/// Entries of the submission queue. When it is full it is submitted, so this is how much goes in one call.
const SUBMISSIONS: u32 = 128;

/// Entries of the completion queue. Beyond that completions wait in the kernel, which is slower. The kernel also sizes
/// the table by this in which it finds the polls that are to end.
const COMPLETIONS: u32 = 8192;

/// What the kernel says of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) token: u64,
    /// A negative one is an error's number.
    pub(crate) result: i32,
    /// Whether there will be another one for the same entry.
    pub(crate) goes_on: bool,
}

/// What of a request the ring has registered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The place of its file.
    pub(crate) file: Option<u32>,
    /// The place of what its buffer is in.
    pub(crate) buffer: Option<u16>,
}

/// A ring.
pub(crate) struct Ring {
    /// Goes before the ring does.
    entrance: Entrance,
    ring: IoUring,
    /// Entries that found the submission queue full, in order.
    backlog: VecDeque<Entry>,
    /// Completions that were taken out before anybody asked for them, in order.
    early: VecDeque<Completion>,
    /// How often the queue was submitted because it was full.
    submits: u64,
    flags: EnterFlags,
    /// The flag of entries whose success nobody waits for, if the kernel knows it (since Linux 5.17).
    quietly: squeue::Flags,
    /// Whether the kernel can wait for many completions, and after some time for one (since Linux 6.12).
    has_min_wait: bool,
}

impl Ring {
    /// Makes a ring, which only the calling thread may use from then on: the best kind that the kernel has.
    pub(crate) fn new() -> io::Result<Self> {
        // Best first: since Linux 6.1 (completions are made when the thread asks for them), 6.0, 5.19 (the thread isn't
        // interrupted for them), 5.18 and 5.6.
        let kinds: [fn(&mut Builder) -> &mut Builder; 5] = [
            |b| b.setup_submit_all().setup_taskrun_flag().setup_single_issuer().setup_defer_taskrun(),
            |b| b.setup_submit_all().setup_taskrun_flag().setup_single_issuer().setup_coop_taskrun(),
            |b| b.setup_submit_all().setup_taskrun_flag().setup_coop_taskrun(),
            |b| b.setup_submit_all(),
            |b| b,
        ];
        let mut result = Err(io::Error::from_raw_os_error(libc::EINVAL));
        for kind in kinds {
            let mut builder = IoUring::builder();
            result = kind(builder.setup_cqsize(COMPLETIONS)).build(SUBMISSIONS);
            // EINVAL: the kernel doesn't know one of the flags.
            if !result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
                break;
            }
        }
        Self::over(result?)
    }

    fn over(ring: IoUring) -> io::Result<Self> {
        let parameters = ring.params();
        if !parameters.is_feature_nodrop() || !parameters.is_feature_ext_arg() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it takes Linux 5.11 or later"));
        }
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if parameters.is_feature_no_iowait() {
            // A loop that waits for its next request isn't one that waits for a disk.
            flags |= EnterFlags::NO_IOWAIT;
        }
        let quietly = match parameters.is_feature_skip_cqe_on_success() {
            true => squeue::Flags::SKIP_SUCCESS,
            false => squeue::Flags::empty(),
        };
        let has_min_wait = parameters.is_feature_min_timeout();
        Ok(Self {
            entrance: Entrance::new(ring.as_raw_fd()),
            ring,
            backlog: VecDeque::new(),
            early: VecDeque::new(),
            submits: 0,
            flags,
            quietly,
            has_min_wait,
        })
    }

    /// Forgets what the thread that made it has of it: this process was forked from that one's.
    pub(crate) fn disown(&mut self) {
        self.entrance.disown();
    }

    /// Queues a one-shot poll: it completes when the descriptor shows one of `events` (those of poll(2)), an error or a
    /// hang-up, at once if it does so now.
    pub(crate) fn poll(&mut self, fd: RawFd, events: i16, token: u64) {
        let entry = opcode::PollAdd::new(Fd(fd), u32::from(events as u16)).build();
        self.push(entry.user_data(token));
    }

    /// Queues a poll that completes each time when the descriptor has come to show one of `events`, an error or a hang-up,
    /// and at once if it does so now; until the kernel, or somebody, ends it.
    pub(crate) fn keep_polling(&mut self, fd: RawFd, events: i16, token: u64) {
        let entry = opcode::PollAdd::new(Fd(fd), u32::from(events as u16)).multi(true).build();
        self.push(entry.user_data(token));
    }

    /// Queues the end of a poll. If it was in time, the poll completes without an event, and this need not complete.
    pub(crate) fn end_poll(&mut self, poll: u64, token: u64) {
        self.push(opcode::PollRemove::new(poll).build().flags(self.quietly).user_data(token));
    }

    /// Queues the end of a poll that goes on. Then that completes once more, and this need not complete.
    ///
    /// The kernel refuses to remove a poll that it is about to tell of an event: one that goes on would then go on. A
    /// cancellation it remembers.
    pub(crate) fn end_keep_polling(&mut self, poll: u64, token: u64) {
        self.push(opcode::AsyncCancel::new(poll).build().flags(self.quietly).user_data(token));
    }

    /// Queues the end of anything that was queued with the token `target`. If it was in time, that fails with
    /// `ECANCELED`.
    pub(crate) fn cancel(&mut self, target: u64, token: u64) {
        self.push(opcode::AsyncCancel::new(target).build().user_data(token));
    }

    /// Queues the end of everything that is under way.
    pub(crate) fn cancel_all(&mut self, token: u64) {
        self.push(opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(token));
    }

    /// Queues a read from where the descriptor stands.
    ///
    /// # Safety
    ///
    /// `buffer` is valid for writes of `len` bytes, and used for nothing else, until the completion with this token has
    /// been taken out, also if the ring is dropped before that.
    pub(crate) unsafe fn read(&mut self, fd: RawFd, buffer: *mut u8, len: u32, token: u64) {
        self.push(opcode::Read::new(Fd(fd), buffer, len).build().user_data(token));
    }

    /// Queues a request to a file. What of it is known is named by its place.
    ///
    /// # Safety
    ///
    /// What the call names is valid as [`Call::run`] demands it, and used for nothing else that conflicts, until the
    /// completion with this token has been taken out, also if the ring is dropped before that. (Vectors themselves only
    /// until it has been submitted.)
    pub(crate) unsafe fn request(&mut self, call: &Call, known: Known, token: u64) {
        #[cfg(test)]
        let call = &fault::on_request(*call, token);
        let fd = Fd(known.file.map_or(call.fd, |place| place as i32));
        let Call { what, offset, flags, .. } = *call;
        let entry = match (what, known.buffer) {
            (What::Read { buffer, len }, Some(place)) => {
                opcode::ReadFixed::new(fd, buffer, len, place).offset(offset).rw_flags(flags).build()
            }
            (What::Write { buffer, len }, Some(place)) => {
                opcode::WriteFixed::new(fd, buffer, len, place).offset(offset).rw_flags(flags).build()
            }
            (What::Read { buffer, len }, None) => {
                opcode::Read::new(fd, buffer, len).offset(offset).rw_flags(flags).build()
            }
            (What::Write { buffer, len }, None) => {
                opcode::Write::new(fd, buffer, len).offset(offset).rw_flags(flags).build()
            }
            (What::ReadVectored { vectors, count }, _) => {
                opcode::Readv::new(fd, vectors.cast(), count).offset(offset).rw_flags(flags).build()
            }
            (What::WriteVectored { vectors, count }, _) => {
                opcode::Writev::new(fd, vectors.cast(), count).offset(offset).rw_flags(flags).build()
            }
            (What::Sync { data_only }, _) => {
                let flags = if data_only { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
                opcode::Fsync::new(fd).flags(flags).build()
            }
            (What::Allocate { mode, len }, _) => opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build(),
        };
        let entry = match known.file {
            Some(_) => entry.flags(squeue::Flags::FIXED_FILE),
            None => entry,
        };
        self.push(entry.user_data(token));
    }

    /// Makes a table of files that are registered, with nothing at its places. Since Linux 5.19.
    pub(crate) fn make_file_table(&self, places: u32) -> io::Result<()> {
        #[cfg(test)]
        fault::on_register()?;
        self.ring.submitter().register_files_sparse(places)
    }

    /// Registers an open file at a place, or nothing; what was there is closed when no request has it any more. Entries
    /// that are queued already mean what is there when they are submitted.
    pub(crate) fn set_file(&self, place: u32, fd: Option<RawFd>) -> io::Result<()> {
        #[cfg(test)]
        fault::on_register()?;
        match self.ring.submitter().register_files_update(place, &[fd.unwrap_or(-1)])? {
            1 => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    /// Gives up the table of files. No request has one of them.
    pub(crate) fn drop_file_table(&self) -> io::Result<()> {
        self.ring.submitter().unregister_files()
    }

    /// Makes a table of memory that is registered, with nothing at its places. Since Linux 5.19.
    pub(crate) fn make_buffer_table(&self, places: u32) -> io::Result<()> {
        #[cfg(test)]
        fault::on_register()?;
        self.ring.submitter().register_buffers_sparse(places)
    }

    /// Registers memory at a place where there is none. Its pages are pinned, and those are what requests that name the
    /// place move data to and from.
    ///
    /// # Safety
    ///
    /// The memory is mapped, readable and writable, and its addresses mean the same pages until the table has been
    /// given up, or the ring has been gone for some time.
    pub(crate) unsafe fn set_buffer(&self, place: u16, start: NonNull<u8>, len: usize) -> io::Result<()> {
        #[cfg(test)]
        fault::on_register()?;
        let memory = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: len };
        // SAFETY: contract.
        unsafe { self.ring.submitter().register_buffers_update(place.into(), &[memory], None) }
    }

    /// Gives up the table of memory; nothing of it is pinned any more. No request has any of it.
    pub(crate) fn drop_buffer_table(&self) -> io::Result<()> {
        self.ring.submitter().unregister_buffers()
    }

    fn push(&mut self, entry: Entry) {
        if self.backlog.is_empty() {
            if self.try_push(&entry) {
                return;
            }
            // The queue is full. What the kernel doesn't take now it takes with a later `enter`.
            let _ = self.submit();
            if self.try_push(&entry) {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    /// Submits what is queued, and takes out completions before they fill their queue.
    fn submit(&mut self) -> io::Result<()> {
        self.submits += 1;
        let result = self.call(0, 0, Some(Duration::ZERO));
        let completions = self.ring.completion();
        if completions.len() * 2 > completions.capacity() {
            self.early.extend(completions.map(Completion::from));
        }
        result
    }

    /// How often the queue was submitted apart from [`enter`](Self::enter), because it was full.
    pub(crate) fn submits(&self) -> u64 {
        self.submits
    }

    fn try_push(&mut self, entry: &Entry) -> bool {
        // SAFETY: entries refer to no memory but that of `read` and `request`, whose callers keep it until the completion.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Submits what is queued, and waits for at least `want` completions, at most `timeout` (`None`: without limit).
    ///
    /// A signal, or a shortage in the kernel, ends the wait early; what has not been submitted is with the next call.
    pub(crate) fn enter(&mut self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        self.enter_with(want, 0, timeout)
    }

    /// As [`enter`](Self::enter), but when `longest` has passed since the call, one completion is enough. A kernel that
    /// can't do that (before Linux 6.12) waits for one completion.
    pub(crate) fn enter_for(&mut self, want: u32, longest: Duration, timeout: Option<Duration>) -> io::Result<()> {
        if !self.has_min_wait {
            return self.enter(want.min(1), timeout);
        }
        // The kernel would wait longer than `timeout` if it were told to.
        let longest = timeout.map_or(longest, |timeout| timeout.min(longest));
        let micros = u32::try_from(longest.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX);
        self.enter_with(want, micros, timeout)
    }

    fn enter_with(&mut self, want: u32, min_wait_micros: u32, timeout: Option<Duration>) -> io::Result<()> {
        while let Some(entry) = self.backlog.front() {
            let entry = entry.clone();
            if self.try_push(&entry) {
                self.backlog.pop_front();
            } else if self.submit().is_err() || self.ring.submission().is_full() {
                break;
            }
        }
        let want = if self.early.is_empty() { want } else { 0 };
        match self.call(want, min_wait_micros, timeout) {
            Ok(()) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// io_uring_enter(2).
    fn call(&mut self, want: u32, min_wait_micros: u32, timeout: Option<Duration>) -> io::Result<()> {
        #[cfg(test)]
        fault::on_enter()?;
        let queued = self.ring.submission().len() as u32;
        // A call that doesn't wait, or without limit, needs no argument: the kernel is spared a look at it.
        if want == 0 || timeout.is_none() && min_wait_micros == 0 {
            let flags = self.flags.difference(EnterFlags::EXT_ARG).bits();
            // SAFETY: there is no argument.
            return unsafe { self.entrance.enter(queued, want, flags, None::<&SubmitArgs<'_, '_>>) };
        }
        let timespec = timeout.map(Timespec::from);
        let mut args = SubmitArgs::new().min_wait_usec(min_wait_micros);
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        // SAFETY: with EXT_ARG the argument is a `SubmitArgs`, which with its timespec outlives the call.
        unsafe { self.entrance.enter(queued, want, self.flags.bits(), Some(&args)) }
    }

    /// Whether there is nothing to submit, and the kernel has nothing to tell unless something has happened since this
    /// call.
    pub(crate) fn is_quiet(&mut self) -> bool {
        !self.has_queued() && !self.has_more() && self.ring.completion().is_empty() && self.early.is_empty()
    }

    /// Whether there is something to submit.
    pub(crate) fn has_queued(&mut self) -> bool {
        !self.backlog.is_empty() || !self.ring.submission().is_empty()
    }

    /// Whether the kernel has completions that the next [`enter`](Self::enter) brings without waiting: their queue was
    /// full, or there were more than it makes in one call.
    pub(crate) fn has_more(&mut self) -> bool {
        let submissions = self.ring.submission();
        submissions.cq_overflow() || submissions.taskrun()
    }

    /// Takes out the completions that are there.
    pub(crate) fn completions(&mut self) -> impl Iterator<Item = Completion> {
        self.early.drain(..).chain(self.ring.completion().map(Completion::from))
    }
}

impl From<cqueue::Entry> for Completion {
    fn from(entry: cqueue::Entry) -> Self {
        let (token, result) = (entry.user_data(), entry.result());
        #[cfg(test)]
        let result = fault::result(token, result.into()) as i32;
        Self { token, result, goes_on: cqueue::more(entry.flags()) }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("backlog", &self.backlog.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn entries_that_the_kernel_does_not_take_yet_are_kept_in_order() {
        // A ring that is not enabled yet refuses to be entered.
        let ring = match IoUring::builder().setup_r_disabled().build(4) {
            Ok(ring) => ring,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let mut ring = Ring::over(ring).expect("a recent kernel");
        // What ends a poll that isn't there completes at once.
        (0..100).for_each(|token| ring.end_poll(u64::MAX, token));
        assert_eq!(ring.backlog.len(), 96);
        ring.ring.submitter().register_enable_rings().expect("it was disabled");
        let mut completed = Vec::new();
        while completed.len() < 100 {
            ring.enter(1, Some(Duration::from_secs(10))).expect("it is enabled");
            let before = completed.len();
            completed.extend(ring.completions().map(|completion| (completion.token, completion.result)));
            assert!(completed.len() > before, "{completed:?}");
        }
        let wanted: Vec<_> = (0..100).map(|token| (token, -libc::ENOENT)).collect();
        assert_eq!(completed, wanted);
        assert!(ring.is_quiet() && !ring.has_more());
    }

    #[test]
    fn completions_that_come_while_entries_are_queued_leave_room_for_others_and_keep_their_order() {
        let ring = match IoUring::builder().build(4) {
            Ok(ring) => ring,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let mut ring = Ring::over(ring).expect("a recent kernel");
        // What ends a poll that isn't there completes at once; the queue has room for eight completions.
        (0..100).for_each(|token| ring.end_poll(u64::MAX, token));
        assert!(!ring.has_more(), "no completion found its queue full");
        assert!(!ring.is_quiet());
        ring.enter(1, None).expect("it doesn't wait: there are completions");
        let completed: Vec<_> = ring.completions().map(|completion| completion.token).collect();
        assert_eq!(completed, Vec::from_iter(0..100));
        assert!(ring.is_quiet());
    }

    /// Field report 81.
    #[test]
    fn completions_that_find_their_queue_full_come_with_the_next_calls() {
        let ring = match IoUring::builder().build(4) {
            Ok(ring) => ring,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let mut ring = Ring::over(ring).expect("a recent kernel");
        let (reader, mut writer) = io::pipe().expect("a pipe");
        (0..100).for_each(|token| ring.poll(reader.as_raw_fd(), libc::POLLIN, token));
        ring.enter(0, Some(Duration::ZERO)).expect("it doesn't wait");
        assert!(ring.is_quiet());
        writer.write_all(b"x").expect("room");
        // There is room for eight.
        ring.enter(1, None).expect("they are ready");
        let mut completed = Vec::new();
        loop {
            completed.extend(ring.completions().map(|completion| completion.token));
            if !ring.has_more() {
                break;
            }
            ring.enter(0, Some(Duration::ZERO)).expect("it doesn't wait");
        }
        completed.sort_unstable();
        assert_eq!(completed, Vec::from_iter(0..100));
    }

    /// Field reports 91 and 94.
    #[test]
    fn a_ring_takes_what_the_kernel_has_and_does_without_what_came_later() {
        let ring = match IoUring::builder().build(4) {
            Ok(ring) => ring,
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let mut ring = Ring::over(ring).expect("a recent kernel");
        assert_eq!(ring.flags.contains(EnterFlags::NO_IOWAIT), ring.ring.params().is_feature_no_iowait());
        ring.quietly = squeue::Flags::empty();
        ring.has_min_wait = false;
        let (reader, _writer) = io::pipe().expect("a pipe");
        ring.poll(reader.as_raw_fd(), libc::POLLIN, 1);
        ring.end_poll(1, 2);
        let mut completed = Vec::new();
        while completed.len() < 2 {
            ring.enter_for(100, Duration::from_secs(1000), None).expect("one completion is enough");
            completed.extend(ring.completions().map(|completion| (completion.token, completion.result)));
        }
        completed.sort_unstable();
        assert_eq!(completed, [(1, -libc::ECANCELED), (2, 0)]);
    }
}
