//! `nbd_server`: serves raw disk images by the NBD protocol, with a coroutine for each connection and one for each request.
//!
//! `cargo run --release --example nbd_server -- --socket PATH FILE` serves an image; `--help` lists the options.
//!
//! ```text
//!  main thread: Listener ── Arrival ──▶ Inbox of an I/O thread's Worker
//!  I/O thread:  Link ──▶ handshake ──▶ Session: Receiver ── Request ──▶ a coroutine: Export ── Reply ──▶ Outbox
//! ```
//!
//! - `protocol`: numbers and layouts; `handshake`: agreeing on an export; `connection`: reading requests, carrying them out
//! - `receiver`, `outbox`: a socket's two directions, many messages by one system call
//! - `export`: an image, through `block::File`; `extents`: where it has holes
//! - `listener`, `worker`, `server`: who serves whom on which thread
//! - `limits`, `permits`, `buffers`: what a client can make the server spend; `rate`: the throttle of `block_layer`
//! - `ending`, `log`: what is said about those who went too far
//!
//! Each coroutine is straight-line code with std's `Read` and `Write`. What is hostile meets a bound: connections, requests
//! of one, bytes of their payloads, time for what was begun, lines of the log. What is none of these costs no memory.

#![deny(unsafe_code)]
#![allow(unreachable_pub, reason = "a program exports nothing; `pub` says what a module offers to the others")]

mod buffers;
mod cli;
mod connection;
mod ending;
mod export;
mod extents;
mod handshake;
mod limits;
mod listener;
mod log;
mod outbox;
mod permits;
mod protocol;
#[path = "../block_layer/rate.rs"]
mod rate;
mod receiver;
mod server;
mod worker;

use std::process::ExitCode;

use clap::Parser;

/// What ends the program early: always one sentence for the user.
type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match serve(&cli::Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nbd_server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &cli::Options) -> Result<(), Error> {
    let plan = options.plan()?;
    log::set_verbose(plan.verbose);
    server::run(&plan)
}
