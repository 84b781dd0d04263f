//! The process' CPU time.
//!
//! # Safety
//!
//! One call into libc that fills a structure of ours.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::time::Duration;

/// User and system time that this process has used so far, all threads together.
pub fn cpu_time() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for writes of one `rusage`, which is all that getrusage asks for.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: `rusage` is made of integers, for which zeros are valid, whether or not the call has filled it.
    let usage = unsafe { usage.assume_init() };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}
