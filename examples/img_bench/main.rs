//! `img_bench`: reads or overwrites a raw disk image at a queue depth, one coroutine per slot.
//!
//! Each coroutine is straight-line code: take the next offset, read the block, verify it, record the latency, loop
//! (`run.rs`). What turns that into deep queues is below it, in `engine/`: requests made in one turn of the loop
//! reach the kernel in one system call, and completions wake the coroutines that wait for them.
//!
//! `cargo run --release --example img_bench -- --help` lists the options; without any, it makes itself a temporary
//! image and reads that.

#![deny(unsafe_code)]
#![allow(unreachable_pub, reason = "a program exports nothing; `pub` says what a module offers to the others")]

mod cli;
mod engine;
mod image;
mod pattern;
mod progress;
mod report;
mod run;
mod usage;

use std::io;
use std::process::ExitCode;

use clap::Parser;

/// What ends the program early: always one sentence for the user.
type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match bench(&cli::Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("img_bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(options: &cli::Options) -> Result<(), Error> {
    let plan = options.plan()?;
    let image = image::Image::open(&plan)?;
    for note in &image.notes {
        eprintln!("note: {note}");
    }
    let outcome = run::run(&plan, &image)?;
    if plan.write && plan.verify {
        image.verify()?;
    }
    match report::print(&plan, &image, &outcome, &mut io::stdout().lock()) {
        // Nobody reads on: not our failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
}
