//! `img_bench`: reads or overwrites raw disk images with so many requests in flight, through the block layer and past it.
//!
//! The way through the block layer is `mode/coroutine.rs`: each slot of the queue is a coroutine of straight-line code,
//! which takes the next offset, reads the block into a buffer that it borrows, records the latency, and loops.
//! `mode/bypass.rs` does the same by callbacks, and `mode/raw.rs` without aioco, as a yardstick.
//!
//! `cargo run --release --example img_bench -- --help` lists the options; without any, it makes itself a temporary
//! image and reads that.

#![deny(unsafe_code)]
#![allow(unreachable_pub, reason = "a program exports nothing; `pub` says what a module offers to the others")]

mod cli;
mod image;
mod job;
mod json;
mod lane;
mod measure;
mod mode;
mod pattern;
mod plan;
mod plot;
mod progress;
mod raw;
mod report;
mod usage;

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::image::Target;
use crate::plan::Plan;

/// What ends the program early: always one sentence for the user.
type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match bench(cli::Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("img_bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(options: cli::Options) -> Result<(), Error> {
    let plan = Plan::new(options)?;
    if let Some(path) = &plan.plot {
        check_place_of_plot(path)?;
    }
    let targets = open(&plan)?;
    let rows = measure::measure(&plan, &targets)?;
    if plan.verify && plan.ops.iter().any(|op| op.writes()) {
        targets.iter().flat_map(|target| &target.images).try_for_each(|image| image.verify(&plan))?;
    }
    if let Some(path) = &plan.plot {
        fs::write(path, plot::draw(&rows)).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    match report::print(&plan, &targets, &rows, &mut io::stdout().lock()) {
        // Nobody reads on: not our failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
}

fn open(plan: &Plan) -> Result<Vec<Target>, Error> {
    let mut targets = Vec::new();
    for images in &plan.targets {
        match Target::open(plan, images) {
            Ok(target) => {
                target.notes.iter().for_each(|note| plan.note(format_args!("{note}")));
                targets.push(target);
            }
            Err(error) if plan.may_leave_out && plan.targets.len() > 1 => {
                plan.note(format_args!("a target is left out: {error}"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(targets)
}

/// Better now than after the run.
fn check_place_of_plot(path: &Path) -> Result<(), Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(format!("cannot write {}: {} is not a directory", path.display(), folder.display()).into());
    }
    if path.is_dir() {
        return Err(format!("cannot write {}: it is a directory", path.display()).into());
    }
    Ok(())
}

impl Plan {
    /// Says something worth knowing that is not a figure.
    fn note(&self, message: fmt::Arguments<'_>) {
        if !self.quiet {
            eprintln!("note: {message}");
        }
    }
}
