//! The command line, and the plan that a valid one amounts to.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::{Parser, value_parser};

use crate::Error;
use crate::export::Mode;
use crate::limits::{Limits, Patience};
use crate::protocol::{MAX_PAYLOAD, MAX_STRING};

/// I/O threads when nobody says how many. More serve more clients, but who has so many may say so.
const MOST_BY_DEFAULT: usize = 4;

/// The least memory of an I/O thread: the largest payload.
const MIB_PER_THREAD: usize = (MAX_PAYLOAD >> 20) as usize;

const LONG_HELP: &str = "\
Serves raw disk images by the NBD protocol (fixed newstyle), over Unix sockets and TCP, to any number of clients at a \
time. Prints a URI for each address when it listens there. SIGINT and SIGTERM end it after the requests in flight; a \
second one ends it at once.

The first image is also the one that clients get who name none.";

/// NBD server for raw disk images.
#[derive(Debug, Parser)]
#[command(name = "nbd_server", long_about = LONG_HELP)]
pub struct Options {
    /// Raw image file or block device, exported under its file name
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Raw image FILE, exported under NAME
    #[arg(long = "export", value_name = "NAME=FILE")]
    exports: Vec<String>,

    /// Listen at the Unix socket PATH; it is removed at the end
    #[arg(long = "socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,

    /// Listen at this TCP address (127.0.0.1:10809 if there is no --socket either); port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    tcp: Vec<SocketAddr>,

    /// Refuse whatever changes an image
    #[arg(long)]
    read_only: bool,

    /// Bypass the page cache (O_DIRECT); clients have to keep to the image's block size
    #[arg(long)]
    direct: bool,

    /// Let N requests a second of each image through, of all clients together
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1_000_000))]
    throttle: Option<u32>,

    /// I/O threads; each connection stays on one of them. Without this there is one for each core, but no more than four
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// Connections at a time; more are turned away
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    connections: usize,

    /// Requests in flight of one connection; more wait
    #[arg(long, value_name = "N", default_value_t = 128)]
    depth: usize,

    /// Mebibytes of data in flight of all connections
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    memory: usize,

    /// Seconds in which a client has to send what it has begun, or to take a MiB of what it asked for
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    patience: f64,

    /// Log what is in order, too
    #[arg(long)]
    verbose: bool,
}

/// A checked command line.
#[derive(Clone, Debug)]
pub struct Plan {
    /// By name.
    pub exports: Vec<(String, PathBuf)>,
    pub sockets: Vec<PathBuf>,
    pub tcp: Vec<SocketAddr>,
    pub mode: Mode,
    pub threads: usize,
    pub limits: Limits,
    pub verbose: bool,
}

impl Options {
    /// Checks what needs no look at the machine, but for how many cores it has.
    pub fn plan(&self) -> Result<Plan, Error> {
        let threads = self.threads.unwrap_or_else(|| self.fitting_threads());
        for (option, value, most) in [
            ("--threads", threads, 1024),
            ("--connections", self.connections, 1 << 24),
            ("--depth", self.depth, 1 << 16),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("{option} must be from 1 to {most}, and {value} is not").into());
            }
        }
        let least_mib = threads * MIB_PER_THREAD;
        if !(least_mib..=1 << 20).contains(&self.memory) {
            return Err(format!(
                "--memory must be from {least_mib} (for --threads {threads}) to 1048576, and {} is not",
                self.memory
            )
            .into());
        }
        let patience = match Duration::try_from_secs_f64(self.patience) {
            Ok(time) if !time.is_zero() => Patience(time),
            _ => return Err(format!("--patience must be a time above 0, and {} is not", self.patience).into()),
        };
        let mut tcp = self.tcp.clone();
        if tcp.is_empty() && self.sockets.is_empty() {
            tcp.push(SocketAddr::from(([127, 0, 0, 1], 10_809)));
        }
        Ok(Plan {
            exports: self.named_exports()?,
            sockets: self.sockets.clone(),
            tcp,
            mode: Mode { read_only: self.read_only, direct: self.direct, throttle: self.throttle },
            threads,
            limits: Limits {
                connections: self.connections,
                depth: self.depth,
                memory: (self.memory << 20) / threads,
                patience,
            },
            verbose: self.verbose,
        })
    }

    fn fitting_threads(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        cores.min(self.memory / MIB_PER_THREAD).clamp(1, MOST_BY_DEFAULT)
    }

    fn named_exports(&self) -> Result<Vec<(String, PathBuf)>, Error> {
        let by_file_name = self.files.iter().map(|path| Ok((file_name(path)?, path.clone())));
        let by_name = self.exports.iter().map(|export| match export.split_once('=') {
            Some((name, file)) if !file.is_empty() => Ok((name.to_owned(), PathBuf::from(file))),
            _ => Err(format!("--export {export} is not of the form NAME=FILE").into()),
        });
        let exports = by_file_name.chain(by_name).collect::<Result<Vec<_>, Error>>()?;
        if exports.is_empty() {
            return Err("there is nothing to serve: name a FILE".into());
        }
        let mut names = HashSet::new();
        for (name, _) in &exports {
            if name.len() > MAX_STRING {
                return Err(format!("the name of an export has at most {MAX_STRING} bytes").into());
            }
            if !names.insert(name) {
                return Err(format!("two exports are named {name:?}: give one another name by --export").into());
            }
        }
        Ok(exports)
    }
}

fn file_name(path: &Path) -> Result<String, Error> {
    match path.file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok(name.to_owned()),
        None => Err(format!("{} has no name for an export: give it one by --export", path.display()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(args: &[&str]) -> Result<Plan, String> {
        Options::try_parse_from([&["nbd_server"], args].concat())
            .map_err(|error| error.to_string())
            .and_then(|options| options.plan().map_err(|error| error.to_string()))
    }

    #[test]
    fn exports_have_names() {
        let plan = plan(&["/images/a.img", "b", "--export", "c=d=e", "--export", "=f"]).unwrap();
        let named = |name: &str, path: &str| (name.to_owned(), PathBuf::from(path));
        let expected = [named("a.img", "/images/a.img"), named("b", "b"), named("c", "d=e"), named("", "f")];
        assert_eq!(plan.exports, expected);
    }

    #[test]
    fn defaults() {
        assert_eq!(plan(&["a"]).unwrap().tcp, ["127.0.0.1:10809".parse().unwrap()]);
        assert_eq!(plan(&["a", "--socket", "s"]).unwrap().tcp, []);
        let several = plan(&["a", "--threads", "8"]).unwrap();
        assert_eq!(several.limits.memory, 32 << 20);
        let small = plan(&["a", "--memory", "63"]).unwrap();
        assert_eq!((small.threads, small.limits.memory), (1, 63 << 20));
        assert!((1..=MOST_BY_DEFAULT).contains(&plan(&["a"]).unwrap().threads));
    }

    #[test]
    fn nonsense_is_named() {
        let long = format!("{}=f", "n".repeat(5000));
        for (args, part) in [
            (&[][..], "FILE"),
            (&["a", "b/a"], "\"a\""),
            (&["/"], "--export"),
            (&["--export", "a"], "NAME=FILE"),
            (&["--export", "a="], "NAME=FILE"),
            (&["--export", &long], "4096"),
            (&["a", "--threads", "0"], "--threads"),
            (&["a", "--throttle", "0"], "--throttle"),
            (&["a", "--depth", "0"], "--depth"),
            (&["a", "--connections", "0"], "--connections"),
            (&["a", "--memory", "31"], "--memory"),
            (&["a", "--memory", "100", "--threads", "4"], "128"),
            (&["a", "--patience", "0"], "--patience"),
            (&["a", "--patience", "nan"], "--patience"),
            (&["a", "--tcp", "nowhere"], "--tcp"),
        ] {
            let error = plan(args).unwrap_err();
            assert!(error.contains(part), "{args:?}: {error}");
        }
    }
}
