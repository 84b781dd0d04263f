//! `unchanged_libraries`: libraries that block, and have never heard of coroutines, run on coroutines.
//!
//! All that they ask for is std's `Read` and `Write`. [`Parked`](aioco::fd::Parked) has both, and where a `TcpStream` would
//! block the thread, it parks the coroutine: in the middle of the library's code, with the library's frames on the
//! coroutine's stack. So there is no version of these libraries for coroutines, and no need for one.
//!
//! - [`lines`]: std alone, `io::copy` and `BufRead::lines`
//! - [`websocket`]: the crate `tungstenite`
//! - [`tls`]: the crate `rustls`; and `tungstenite` on top of that
//!
//! [`meeting`] brings servers and clients together: each end of each connection is a coroutine, and all of them share one
//! thread. All connections are open before the first client says a word, so all servers are inside their handshakes at
//! once.
//!
//! ```sh
//! cargo run --release --example unchanged_libraries -- --connections 1000
//! ```
//!
//! # Stacks
//!
//! A library's frames have to fit on the coroutine's stack, which doesn't grow. The default of 256 KiB has room to spare. Of
//! that, a stack touches on average (and so takes memory for), with a connection's both ends counted:
//!
//! | | release build | debug build |
//! |---|---|---|
//! | lines | 7 KiB | 11 KiB |
//! | WebSocket | 9 KiB | 18 KiB |
//! | TLS | 12 KiB | 37 KiB |
//! | WebSocket over TLS | 18 KiB | 52 KiB |
//!
//! With `--stack 64` all of it runs in a release build. In a debug build the client of the last one overflows, which ends the
//! program on the guard page; it runs with 128.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "a program exports nothing; `pub` says what a module offers to the others")]

mod lines;
mod meeting;
mod tls;
mod websocket;

use std::io::{self, Write};
use std::process::ExitCode;

use aioco::AioContext;
use aioco::aio::Local;
use clap::{Parser, value_parser};

use crate::meeting::{Plan, Tally};

/// What ends the program early: always one sentence for the user.
type Error = Box<dyn std::error::Error + Send + Sync>;

/// Runs libraries that block on coroutines, all on one thread.
#[derive(Debug, Parser)]
#[command(name = "unchanged_libraries")]
struct Options {
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u16).range(1..=8000))]
    connections: u16,

    /// KiB that each connection carries, there and back
    #[arg(long, value_name = "KIB", default_value_t = 2048, value_parser = value_parser!(u32).range(1..=1 << 20))]
    data: u32,

    /// KiB of address space for each coroutine's stack, rounded up to a power of two and to 64
    #[arg(long, value_name = "KIB", default_value_t = 256, value_parser = value_parser!(u32).range(1..=1 << 20))]
    stack: u32,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let plan = Plan {
        connections: options.connections.into(),
        data: (options.data as usize) << 10,
        stack: (options.stack as usize) << 10,
    };
    match run(plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("unchanged_libraries: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(plan: Plan) -> Result<(), Error> {
    let context = AioContext::new()?;
    let mut out = io::stdout().lock();
    writeln!(out, "{:<28}{:>13}{:>9}{:>9}{:>9}{:>9}", "", "connections", "at once", "threads", "ms", "MiB/s")?;
    for (name, part) in PARTS {
        let tally = context.block_on(|| part(&context, plan)).map_err(|error| format!("{name}: {error}"))?;
        let seconds = tally.elapsed.as_secs_f64();
        // There and back.
        let mib = 2.0 * (plan.connections * plan.data) as f64 / f64::from(1 << 20);
        let Tally { connections, at_once, threads, .. } = tally;
        let (ms, rate) = (seconds * 1e3, mib / seconds);
        writeln!(out, "{name:<28}{connections:>13}{at_once:>9}{threads:>9}{ms:>9.1}{rate:>9.0}")?;
    }
    Ok(())
}

type Part = fn(&Local, Plan) -> Result<Tally, Error>;

const PARTS: [(&str, Part); 4] = [
    ("lines (std)", lines::run),
    ("WebSocket (tungstenite)", websocket::run),
    ("TLS (rustls)", tls::run),
    ("WebSocket over TLS (both)", tls::run_websocket),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// All connections are inside the library at once, and whatever comes back is what was sent: the clients look.
    #[test]
    fn each_library_serves_many_connections_on_one_thread() {
        let plan = Plan { connections: 32, data: 300_000, stack: 256 << 10 };
        let context = AioContext::new().unwrap();
        for (name, part) in PARTS {
            let tally = context.block_on(|| part(&context, plan)).unwrap();
            assert_eq!((tally.connections, tally.at_once, tally.threads), (32, 32, 1), "{name}");
        }
    }
}
