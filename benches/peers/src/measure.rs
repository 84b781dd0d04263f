//! How loops are timed: interleaved, on one core, and reduced to a minimum and a median.

use std::io;
use std::iter;
use std::mem;
use std::sync::OnceLock;
use std::time::Duration;

/// A timed loop: does its work the given number of times and returns how long that took.
pub type Loop = fn(u64) -> Duration;

/// About how long one repetition of a loop takes: long against the clock's resolution, short against the time slices
/// and frequency changes it has to slip between.
const REPETITION: Duration = Duration::from_millis(3);

/// What is left of many repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The best repetition: what the code costs when nothing disturbs it.
    pub min: f64,
    pub median: f64,
}

impl Summary {
    /// Summarises samples, of which there must be at least one.
    pub fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let middle = samples.len() / 2;
        let median =
            if samples.len() % 2 == 1 { samples[middle] } else { f64::midpoint(samples[middle - 1], samples[middle]) };
        Self { min: samples[0], median }
    }

    /// The figures for one of so many equal parts.
    pub fn divided_by(self, parts: f64) -> Self {
        Self { min: self.min / parts, median: self.median / parts }
    }
}

/// Times the loops `rounds` times in turn, so that whatever slows the machine down for a while slows down all of them,
/// and returns the nanoseconds that one time takes. A first round, to warm up, is not counted.
pub fn interleaved(loops: &[Loop], rounds: usize) -> Vec<Summary> {
    let times: Vec<u64> = loops.iter().copied().map(calibrate).collect();
    let mut samples = vec![Vec::with_capacity(rounds); loops.len()];
    for round in 0..=rounds {
        for ((run, &times), samples) in loops.iter().zip(&times).zip(&mut samples) {
            let nanoseconds = run(times).as_nanos() as f64 / times as f64;
            if round > 0 {
                samples.push(nanoseconds);
            }
        }
    }
    samples.into_iter().map(Summary::of).collect()
}

/// How many times the loop has to go around to take about as long as a repetition.
fn calibrate(run: Loop) -> u64 {
    let enough = REPETITION / 8;
    let mut times = 1;
    loop {
        // The shortest of a few: an interruption must not pass for work.
        let elapsed = iter::repeat_with(|| run(times)).take(3).min().unwrap_or_default();
        if elapsed >= enough {
            let per_repetition = REPETITION.as_nanos() * u128::from(times) / elapsed.as_nanos();
            return u64::try_from(per_repetition).unwrap_or(u64::MAX).max(1);
        }
        // By leaps while little is known of it, since some loops prepare for long what they then time.
        let missing = enough.as_nanos() / elapsed.as_nanos().max(1);
        times *= u64::try_from(missing).unwrap_or(u64::MAX).clamp(2, 16);
    }
}

/// The processor time that this process has used, on all of its threads.
pub fn cpu_time() -> Duration {
    CpuClock(libc::CLOCK_PROCESS_CPUTIME_ID).now()
}

/// A clock that goes while a thread, or the process, has a processor. All threads may read it.
#[derive(Clone, Copy)]
pub struct CpuClock(libc::clockid_t);

impl CpuClock {
    pub fn of_this_thread() -> Self {
        let mut clock = 0;
        // SAFETY: the thread is running, and the clock's number is valid to write to.
        let result = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
        assert_eq!(result, 0, "each thread has this clock");
        Self(clock)
    }

    /// The processor time until now.
    ///
    /// # Panics
    ///
    /// If the thread has ended.
    pub fn now(self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time is valid to write to.
        let result = unsafe { libc::clock_gettime(self.0, &mut time) };
        assert_eq!(result, 0, "the thread is there");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

/// A core, counted from the last one that the process may run on; the first one tends to serve the interrupts.
#[derive(Clone, Copy)]
pub enum Core {
    Last,
    SecondLast,
}

/// Where the process may run when none of its threads is pinned.
static ALLOWED: OnceLock<libc::cpu_set_t> = OnceLock::new();

/// Keeps the calling thread on one core, until it is dropped. Threads spawned meanwhile are kept there too.
pub struct Pinned {
    allowed_before: libc::cpu_set_t,
}

/// Whether the calling thread may run on one core only.
pub fn is_pinned() -> bool {
    // SAFETY: the function only reads the set.
    affinity().is_ok_and(|set| unsafe { libc::CPU_COUNT(&set) } == 1)
}

impl Pinned {
    /// Pins the calling thread.
    pub fn to(core: Core) -> io::Result<Self> {
        let allowed_before = affinity()?;
        let allowed = ALLOWED.get_or_init(|| allowed_before);
        let core = (0..libc::CPU_SETSIZE as usize)
            .rev()
            // SAFETY: the index is below the size of the set.
            .filter(|&core| unsafe { libc::CPU_ISSET(core, allowed) })
            .nth(core as usize)
            .ok_or(io::ErrorKind::NotFound)?;
        let mut one = empty_set();
        // SAFETY: as above.
        unsafe { libc::CPU_SET(core, &mut one) };
        set_affinity(&one)?;
        Ok(Self { allowed_before })
    }
}

/// Lets the calling thread run on all cores, though it was spawned by a pinned one.
pub fn unpin() {
    if let Some(allowed) = ALLOWED.get() {
        // Fails only if the cores were taken away meanwhile; then it stays where it is.
        let _ = set_affinity(allowed);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Fails only if the cores were taken away meanwhile; then there is nothing to go back to.
        let _ = set_affinity(&self.allowed_before);
    }
}

fn empty_set() -> libc::cpu_set_t {
    // SAFETY: a `cpu_set_t` is an array of integers, for which zeroes are valid.
    unsafe { mem::zeroed() }
}

fn affinity() -> io::Result<libc::cpu_set_t> {
    let mut set = empty_set();
    // SAFETY: the set is as large as stated, and 0 is the calling thread.
    match unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } {
        0 => Ok(set),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_affinity(set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the set is as large as stated, and 0 is the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of_val(set), set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_an_odd_number_of_samples() {
        let summary = Summary::of(vec![3.0, 1.0, 2.0]);
        assert_eq!(summary, Summary { min: 1.0, median: 2.0 });
    }

    #[test]
    fn summary_of_an_even_number_of_samples() {
        let summary = Summary::of(vec![4.0, 1.0, 2.0, 3.0]);
        assert_eq!(summary, Summary { min: 1.0, median: 2.5 });
    }

    #[test]
    fn pinning_ends_with_the_guard() {
        let before = is_pinned();
        let pinned = Pinned::to(Core::Last).unwrap();
        assert!(is_pinned());
        drop(pinned);
        assert_eq!(is_pinned(), before);
    }
}
