//! What the operator is told, on standard error: a line each, and no more lines in a second than somebody can read, since
//! clients decide how many there are.

use std::fmt;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So many lines in a second.
const LINES: u32 = 50;

/// Whether what is in order is told, too.
static VERBOSE: AtomicBool = AtomicBool::new(false);

static PACE: Mutex<Pace> = Mutex::new(Pace { since: None, lines: 0 });

struct Pace {
    since: Option<Instant>,
    lines: u32,
}

pub fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
}

/// Tells what isn't in order.
pub fn warn(text: impl fmt::Display) {
    let now = Instant::now();
    let mut pace = PACE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if pace.since.is_none_or(|since| now - since > Duration::from_secs(1)) {
        if pace.lines > LINES {
            say(format_args!("{} more lines like these", pace.lines - LINES));
        }
        *pace = Pace { since: Some(now), lines: 0 };
    }
    pace.lines += 1;
    if pace.lines <= LINES {
        say(text);
    }
}

/// Tells what is in order, if it is to be told.
pub fn note(text: impl fmt::Display) {
    if VERBOSE.load(Ordering::Relaxed) {
        say(text);
    }
}

fn say(text: impl fmt::Display) {
    // Nobody reads it: no reason to end.
    let _ = io::stderr().write_all(format!("nbd_server: {text}\n").as_bytes());
}
