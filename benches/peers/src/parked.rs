//! Coroutines that are created, entered to a suspension and kept: what each one takes in memory, mappings and time.
//!
//! Every measurement runs in a process of its own, where no freed memory is left of an earlier one, and which may run
//! into the kernel's limits.

use std::any::Any;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::process::{self, Command, Stdio};
use std::time::Instant;

use crate::runtime::Runtime;

/// The state of a process with a great many parked coroutines.
#[derive(Clone, Debug, PartialEq)]
pub struct Parked {
    /// How many coroutines there are.
    pub reached: usize,
    /// Resident memory and page tables for each, in bytes; the handle that owns the coroutine is included.
    pub bytes: f64,
    /// Mappings added, in total.
    pub maps: f64,
    /// What creating, entering and suspending took for each, in nanoseconds.
    pub create: f64,
    /// Why there aren't more, if there should be.
    pub failure: Option<String>,
}

/// How far a process got with creating coroutines.
pub struct Filled {
    pub reached: usize,
    pub failure: Option<String>,
}

impl Parked {
    /// Measures what `fill` leaves behind.
    pub fn measure(fill: impl FnOnce() -> Filled) -> Self {
        let before = Footprint::of_this_process();
        let start = Instant::now();
        let Filled { reached, failure } = fill();
        let elapsed = start.elapsed();
        let after = Footprint::of_this_process();
        let each = |total: f64| total / reached as f64;
        Self {
            reached,
            bytes: each(after.bytes - before.bytes),
            maps: after.maps - before.maps,
            create: each(elapsed.as_nanos() as f64),
            failure,
        }
    }

    /// One line, to be read by [`from_line`](Self::from_line).
    fn to_line(&self) -> String {
        let Self { reached, bytes, maps, create, failure } = self;
        let failure = failure.as_deref().unwrap_or_default().replace('\n', " ");
        format!("{reached}\t{bytes}\t{maps}\t{create}\t{failure}")
    }

    fn from_line(line: &str) -> Option<Self> {
        let mut fields = line.splitn(5, '\t');
        let mut next = || fields.next();
        Some(Self {
            reached: next()?.parse().ok()?,
            bytes: next()?.parse().ok()?,
            maps: next()?.parse().ok()?,
            create: next()?.parse().ok()?,
            failure: Some(next()?.to_owned()).filter(|failure| !failure.is_empty()),
        })
    }
}

/// Parks up to `count` coroutines and keeps them for the rest of the process.
pub fn park<R: Runtime>(count: usize) -> Parked {
    Parked::measure(|| {
        let mut coroutines = Vec::with_capacity(count);
        let failure = until_failure(|| {
            for _ in 0..count {
                let mut coroutine = R::create_parked()?;
                R::enter(&mut coroutine);
                coroutines.push(coroutine);
            }
            Ok(())
        });
        let reached = coroutines.len();
        mem::forget(coroutines);
        Filled { reached, failure }
    })
}

/// Runs `create` and says why it failed, whether by an error or a panic.
fn until_failure(create: impl FnOnce() -> io::Result<()>) -> Option<String> {
    // The message is in the result; printing a backtrace with it may need memory that can't be had.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let result = panic::catch_unwind(AssertUnwindSafe(create));
    panic::set_hook(hook);
    match result {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(payload) => Some(panic_message(&*payload)),
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let message =
        payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    format!("panicked: {}", message.unwrap_or("no message"))
}

/// What a process takes.
struct Footprint {
    /// Resident memory and page tables, in bytes.
    bytes: f64,
    maps: f64,
}

impl Footprint {
    /// Reads the kernel's account of this process, with little memory of its own: there may be no mapping left to
    /// allocate from.
    fn of_this_process() -> Self {
        let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
        let kilobytes = |field: &str| -> f64 {
            status
                .lines()
                .find_map(|line| line.strip_prefix(field))
                .and_then(|value| value.trim().strip_suffix(" kB"))
                .and_then(|value| value.parse().ok())
                .unwrap_or_else(|| panic!("/proc/self/status has a {field} line"))
        };
        let bytes = (kilobytes("VmRSS:") + kilobytes("VmPTE:")) * 1024.0;
        let maps = count_lines("/proc/self/maps").expect("/proc is mounted");
        Self { bytes, maps: maps as f64 }
    }
}

fn count_lines(path: &str) -> io::Result<usize> {
    let mut file = BufReader::new(File::open(path)?);
    let mut lines = 0;
    loop {
        let chunk = file.fill_buf()?;
        if chunk.is_empty() {
            return Ok(lines);
        }
        lines += chunk.iter().filter(|&&byte| byte == b'\n').count();
        let length = chunk.len();
        file.consume(length);
    }
}

/// Memory that can be allocated without swapping, in bytes, if the kernel says.
pub fn available_memory() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Runs this program's hidden command `name` with the given arguments, which ends in [`report_and_exit`].
pub fn in_a_child(name: &str, arguments: &[&str]) -> Result<Parked, String> {
    let output = std::env::current_exe()
        .and_then(|program| Command::new(program).arg(name).args(arguments).stderr(Stdio::inherit()).output())
        .map_err(|error| format!("can't start a process: {error}"))?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .next()
        .and_then(Parked::from_line)
        .ok_or_else(|| format!("died: {}", output.status))
}

/// Writes the result for [`in_a_child`] and ends the process, without destroying the coroutines.
pub fn report_and_exit(parked: Parked) -> ! {
    println!("{}", parked.to_line());
    process::exit(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_everything() {
        let parked =
            Parked { reached: 3, bytes: 4096.5, maps: 2.0, create: 700.25, failure: Some(String::from("no more")) };
        assert_eq!(Parked::from_line(&parked.to_line()), Some(parked));
    }

    #[test]
    fn the_reason_of_a_failure_is_kept() {
        let error = until_failure(|| Err(io::Error::other("full")));
        assert_eq!(error.as_deref(), Some("full"));
        let panic = until_failure(|| panic::resume_unwind(Box::new("full")));
        assert_eq!(panic.as_deref(), Some("panicked: full"));
    }
}
