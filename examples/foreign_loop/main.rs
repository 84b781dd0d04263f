//! `foreign_loop`: coroutines on the event loops of others, through the trait `coroutine::Home` and nothing else.
//!
//! The same coroutines run on two loops, each of which has a timer and a handler of its own beside them:
//!
//! ```sh
//! cargo run --release --example foreign_loop
//! cargo run --release --example foreign_loop -- mio
//! cargo run --release --example foreign_loop -- calloop
//! ```
//!
//! - [`mio_home`], [`calloop_home`]: the homes, for other programs to start from
//! - [`mio_program`], [`calloop_program`]: the loops, as if they had been there first
//! - [`workload`]: what the coroutines do; they don't know on which loop
//!
//! mio has but a way to wait for descriptors; the program's loop is written around it, and asks the home how long to
//! sleep. calloop owns the loop, has timers, and calls its sources back; the home is one of them.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "a program exports nothing; `pub` says what a module offers to the others")]

mod calloop_home;
mod calloop_program;
mod mio_home;
mod mio_program;
mod workload;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

/// Runs coroutines on event loops that others wrote, and prints what they have done.
#[derive(Debug, Parser)]
#[command(name = "foreign_loop")]
struct Options {
    /// The loops to run them on, one after the other; all of them if left out
    #[arg(value_name = "LOOP")]
    loops: Vec<Loop>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Loop {
    Mio,
    Calloop,
}

fn main() -> ExitCode {
    let Options { loops } = Options::parse();
    let loops = if loops.is_empty() { Loop::value_variants() } else { &loops };
    for chosen in loops {
        let (name, run) = match chosen {
            Loop::Mio => ("mio", mio_program::run as fn() -> _),
            Loop::Calloop => ("calloop", calloop_program::run as fn() -> _),
        };
        match run() {
            Ok(report) => println!("{name}: {report}"),
            Err(error) => {
                eprintln!("foreign_loop: {name}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
