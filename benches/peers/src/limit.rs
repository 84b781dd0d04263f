//! How many descriptors the process may have open.

use std::io;

/// What the process may have open besides those that a case asks for.
const OTHERS: u64 = 64;

/// Sees to it that so many descriptors can be opened, if need be by raising the soft limit.
pub fn allow_descriptors(count: u32) -> io::Result<()> {
    let needed = u64::from(count) + OTHERS;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid to write to.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    if limit.rlim_cur >= needed {
        return Ok(());
    }
    if limit.rlim_max < needed {
        let message = format!("it takes {needed} descriptors, and {} are allowed (RLIMIT_NOFILE)", limit.rlim_max);
        return Err(io::Error::other(message));
    }
    limit.rlim_cur = needed;
    // SAFETY: the limit is valid.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
