//! `block_layer`: a small block layer, to learn from and to measure with.
//!
//! A chain of [drivers](driver::BlockDriver) stands on a raw image: filters on top, the file at the bottom. Requests
//! come in at the [`device`], as they would from a guest, each with a callback. There are two ways down:
//!
//! - **Coroutines.** Each driver's `read` is straight-line code that calls the `read` below it, and waits where it has
//!   to: the throttle for its turn ([`throttle`]), the checksum for blocks that others have ([`checksum`],
//!   [`range_lock`]), the raw driver for the disk ([`raw`]).
//! - **The bypass.** If nothing in the chain has to wait, or to see the data, a read needs no coroutine: the drivers
//!   are asked for a [`shortcut`](driver::BlockDriver::shortcut), and the request goes straight to the file, with a
//!   callback.
//!
//! [`Device::shut_down`](device::Device::shut_down) has the order in which a chain ends, and why no request is lost.
//!
//! `main` runs a [`workload`] in both ways on the same chain, and says what a coroutine costs:
//!
//! ```sh
//! cargo run --release --example block_layer
//! cargo run --release --example block_layer -- --filter checksum --filter throttle=5000 --depth 16 disk.img
//! ```

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "a program exports nothing; `pub` says what a module offers to the others")]

mod checksum;
mod cli;
mod device;
mod driver;
mod image;
mod range_lock;
mod rate;
mod raw;
mod report;
mod throttle;
mod workload;

use std::io;
use std::process::ExitCode;
use std::rc::Rc;

use aioco::AioContext;
use clap::Parser;

use crate::cli::{Filter, Options};
use crate::device::{Device, Way};
use crate::driver::BlockDriver;
use crate::image::Image;
use crate::workload::Outcome;

/// What ends the program early: always one sentence for the user.
type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("block_layer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Error> {
    let image = Image::open(options)?;
    let context = AioContext::new()?;
    let mut outcomes = Vec::new();
    // In turn, so that whatever slows the machine down for a while slows down both.
    for _ in 0..options.rounds {
        for way in [Way::BypassIfPossible, Way::Coroutines] {
            outcomes.push((way, run_once(&context, options, &image, way)?));
        }
    }
    match report::print(options, &outcomes, &mut io::stdout().lock()) {
        // Nobody reads on: not our failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
}

/// Builds the chain, runs the workload on it, and takes the chain down while requests are still coming in.
fn run_once(context: &AioContext, options: &Options, image: &Image, way: Way) -> Result<Outcome, Error> {
    let top = build_chain(options, image)?;
    let device = Rc::new(Device::new(context, top, way));
    workload::run(context, &device, options, image)
}

/// The raw driver, and the filters on it.
fn build_chain(options: &Options, image: &Image) -> Result<Rc<dyn BlockDriver>, Error> {
    let mut top: Rc<dyn BlockDriver> = Rc::new(raw::Raw::new(image)?);
    // They were named from top to bottom.
    for filter in options.filters.iter().rev() {
        top = match filter {
            Filter::Throttle { per_second } => Rc::new(throttle::Throttle::new(top, *per_second)),
            Filter::Checksum { table } => {
                let table = image.open_table(table.as_deref())?;
                Rc::new(checksum::Checksum::new(top, table)?)
            }
        };
    }
    Ok(top)
}
