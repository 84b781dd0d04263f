//! The command line. What a valid one amounts to is in `plan.rs`.

use std::path::PathBuf;

use aioco::block::Engine;
use clap::{ArgAction, Parser, ValueEnum};

use crate::mode::Mode;

const LONG_HELP: &str = "\
Reads raw disk images or block devices, or with --write overwrites them, with so many requests in flight, and prints \
I/Os per second, CPU time and system calls per I/O, and latencies. Requests go through aioco's block layer, by \
coroutines or callbacks; with --mode also past it, for comparison.

Without FILE it makes a temporary image in $TMPDIR (or /tmp), fills it, and deletes it at the end.

-c, -d, -f, -i, -n, -o, -q, -s, -S, -t, -U, -w, --flush-interval, --no-drain and --pattern mean what they mean to \
qemu-img bench. Other than there, order is random unless -S or --sequential says otherwise, a run ends after some \
time unless -c says otherwise, the page cache is bypassed if it can be, and each request has a buffer of its own.";

const AFTER_HELP: &str = "\
Modes:
  coroutine, bypass: by aioco; the engine is aioco's choice unless --engine names one, and what it is, and why, is
  printed. raw-ring: an io_uring loop written by hand, with registered files and buffers. raw-aio: the same over Linux
  AIO. pread: pread and pwrite, one after the other; in a comparison its rows stand beside those of each depth. All pay
  for the same look at the clock, random number and histogram.

The pattern:
  Each 512-byte sector holds a magic number, its own offset in the image, the seed, and bytes derived from both.
  A temporary image is filled with it, and so is all of FILE by --write and --mixed before the timed run, which then
  overwrites blocks with the same bytes. So --verify on FILE works after any completed --write run (without --no-fill
  or --pattern), whatever its options were: the seed is read from the first sector. Working it out costs CPU time, which
  is in the figures; --pattern BYTE, and writes to a temporary image without --verify, cost nothing.

Figures:
  CPU time is getrusage's user + system time of the process, all threads and the kernel's workers included. System
  calls are those of the loops and of requests; those by which worker threads wait for work are not in them. A latency
  spans from the request until its slot goes on. MB/s counts 10^6 bytes.
  With several rounds, a figure is the best of all rounds (--statistic best: the least time, CPU time and system calls
  per I/O, and the least of each percentile), or the median.

--format tsv:
  A row for each combination, without a header, of fields separated by tabs:
  mode, target, op, depth, iops, cpu_ns, syscalls, p50_us, p99_us
  target is disk (direct), page-cache or tmpfs; op is read, write or mixed; cpu_ns and syscalls are per I/O. Notes go to
  stderr.

--format json:
  One object: options, and `runs`, which have these fields and more, among them the ratios to raw-ring, and the latency
  histogram as pairs: a bound in nanoseconds, and how many I/Os took no longer, but longer than the bound before.

Exit code: 0 after a complete run, 1 after an error, 2 after a wrong command line.";

/// What says where images are, and how they are reached.
const CHOSEN: [&str; 4] = ["files", "cache", "direct", "buffered"];

/// Benchmark of reads or writes on raw disk images, with many requests in flight.
#[derive(Debug, Parser)]
#[command(name = "img_bench", long_about = LONG_HELP, after_long_help = AFTER_HELP)]
pub struct Options {
    /// Raw image files or block devices; a temporary image if left out
    pub files: Vec<PathBuf>,

    /// How requests are kept in flight; several, separated by commas, are measured in turn [default: coroutine]
    #[arg(long, value_enum, value_name = "MODE", value_delimiter = ',')]
    pub mode: Vec<Mode>,

    /// Measure all modes in turn, in several rounds, and print ratios to raw-ring
    ///
    /// Without FILE, on three temporary images: on disk past the page cache, in the page cache, and on tmpfs; reads and
    /// writes, unless --write or --mixed is given; at depths 1, 8 and 64, unless --depth is given.
    #[arg(long, conflicts_with = "mode")]
    pub compare: bool,

    /// Where temporary images are, several separated by commas
    #[arg(long, value_enum, value_name = "TARGET", value_delimiter = ',', conflicts_with_all = CHOSEN)]
    pub target: Vec<Target>,

    /// Requests that each thread keeps in flight; several depths, separated by commas, are measured in turn [default: 64]
    #[arg(short, long, value_name = "N", value_delimiter = ',')]
    pub depth: Vec<usize>,

    /// Threads, each with a loop of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,

    /// Bytes per request; suffixes k, M and G are powers of 1024
    #[arg(short = 's', long, alias = "buffer-size", value_name = "SIZE", default_value = "4k", value_parser = parse_size)]
    pub block_size: u64,

    /// Offsets go up by SIZE, and begin anew at the end (0: the block size); implies --sequential
    #[arg(short = 'S', long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "random")]
    pub step_size: Option<u64>,

    /// The first offset
    #[arg(short, long, value_name = "OFFSET", default_value = "0", value_parser = parse_size)]
    pub offset: u64,

    /// Blocks in order, from the first one again after the last
    #[arg(long, conflicts_with = "random")]
    pub sequential: bool,

    /// Blocks in random order (the default)
    #[arg(long)]
    pub random: bool,

    /// OVERWRITES ALL DATA IN FILE, without asking: fills it with the pattern, then times writes
    ///
    /// All of FILE is filled, untimed, before the writes that are timed. Whatever was in FILE is lost.
    #[arg(short, long)]
    pub write: bool,

    /// As --write, but PERCENT of the requests are reads
    #[arg(long, value_name = "PERCENT", conflicts_with = "write", value_parser = clap::value_parser!(u8).range(1..100))]
    pub mixed: Option<u8>,

    /// With --write or --mixed: leave blocks that the timed run doesn't reach as they are
    ///
    /// A later --verify fails on those blocks.
    #[arg(long, conflicts_with = "verify")]
    pub no_fill: bool,

    /// Write this byte instead of the pattern, and don't fill FILE before
    #[arg(long, value_name = "BYTE", value_parser = parse_byte, conflicts_with = "verify")]
    pub pattern: Option<u8>,

    /// With --write or --mixed: flush after every N requests (0: never)
    ///
    /// The queue is drained before. N is at least the depth.
    #[arg(long, value_name = "N")]
    pub flush_interval: Option<u64>,

    /// Don't drain the queue before a flush
    #[arg(long, requires = "flush_interval")]
    pub no_drain: bool,

    /// The page cache, as of QEMU's drives [default: none where the file system allows it, else writeback]
    #[arg(short = 't', long, value_enum, value_name = "CACHE")]
    pub cache: Option<CacheMode>,

    /// Bypass the page cache (O_DIRECT), or fail; the same as --cache none
    #[arg(long, conflicts_with_all = ["buffered", "cache"])]
    pub direct: bool,

    /// Go through the page cache; the same as --cache writeback
    #[arg(long, conflicts_with = "cache")]
    pub buffered: bool,

    /// What carries out aioco's requests: auto (aioco chooses), or one of its engines
    #[arg(short = 'i', long, alias = "aio", value_name = "ENGINE", default_value = "auto", value_parser = parse_engine)]
    pub engine: Choice,

    /// The same as --engine native
    #[arg(short, long, conflicts_with = "engine")]
    pub native: bool,

    /// End after N requests
    #[arg(short, long, value_name = "N", conflicts_with = "seconds")]
    pub count: Option<u64>,

    /// End after S seconds [default: 3, and 0.1 where several combinations are measured]
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,

    /// Run for S seconds before that, unmeasured
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub warm_up: f64,

    /// Measure each combination N times, in turn with the others [default: 1, and 7 where there are several modes]
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,

    /// What is printed of several rounds
    #[arg(long, value_enum, default_value_t = Statistic::Best)]
    pub statistic: Statistic,

    /// Submit at most N requests per second, in all
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,

    /// Check all data that is read against the pattern
    ///
    /// The run ends at the first mismatch, and names its offset. FILE must carry the pattern from an earlier --write
    /// run. With --write and --mixed, the whole image is read back and checked after the timed run.
    #[arg(long)]
    pub verify: bool,

    /// Loops poll for at most N microseconds before they sleep
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub polling: u64,

    /// Seed of the random order, and of the pattern where that is written
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Size of a temporary image [default: 256M, and 64M where there are several]
    #[arg(long, value_name = "SIZE", conflicts_with = "files", value_parser = parse_size)]
    pub size: Option<u64>,

    /// How results are printed
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,

    /// Draw IOPS and CPU time per I/O against depth into an SVG image
    ///
    /// Depths are 1, 2, 4 and so on to 128 unless --depth is given.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,

    /// No progress bar, and no notes
    #[arg(short, long)]
    pub quiet: bool,

    /// The format of images, which is raw
    #[arg(short = 'f', value_name = "FMT", value_parser = ["raw"])]
    pub image_format: Option<String>,

    /// Ignored: images are never locked
    #[arg(short = 'U', long, action = ArgAction::SetTrue)]
    pub force_share: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    #[value(alias = "text")]
    Table,
    /// A row for each combination; fields are listed by --help
    Tsv,
    /// For programs, with all there is
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Statistic {
    /// The least of each figure: what the machine can do if it is left alone
    Best,
    /// The median of each figure
    Median,
}

/// Where a temporary image is, and how it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// In $TMPDIR, /tmp or /var/tmp, past the page cache
    Disk,
    /// The same, through the page cache
    PageCache,
    /// In /dev/shm
    Tmpfs,
}

/// The cache modes of QEMU's drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheMode {
    /// O_DIRECT
    #[value(alias = "off")]
    None,
    /// O_DIRECT, and each write is stable when it is done
    Directsync,
    /// Through the page cache
    Writeback,
    /// Through the page cache, and each write is stable when it is done
    Writethrough,
    /// Through the page cache, and flushes do nothing
    Unsafe,
}

/// Which engine the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    Auto,
    Engine(Engine),
}

impl Options {
    /// The engine, by whatever option.
    pub fn engine(&self) -> Result<Choice, String> {
        if self.native { parse_engine("native") } else { Ok(self.engine) }
    }
}

/// Parses the name of an engine, by the crate or by QEMU.
fn parse_engine(text: &str) -> Result<Choice, String> {
    let name = match text {
        "auto" => return Ok(Choice::Auto),
        "threads" => "workers",
        "io_uring" => "ring",
        "native" => "linux-aio",
        name => name,
    };
    let named = Engine::ALL.iter().find(|engine| engine.to_string() == name);
    named.map(|&engine| Choice::Engine(engine)).ok_or_else(|| {
        let names: Vec<_> = Engine::ALL.iter().map(ToString::to_string).collect();
        format!("there is no engine {name}, but auto, {} (and qemu-img's names of these)", names.join(", "))
    })
}

/// Parses `4096`, `4k`, `1M`, `2G`.
fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "expected a whole number of bytes, with k, M or G behind it if you like".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that many bytes don't fit into 64 bits".to_owned())
}

/// Parses a byte, decimal or hexadecimal.
fn parse_byte(text: &str) -> Result<u8, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "expected a number from 0 to 255".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("4K"), Ok(4096));
        assert_eq!(parse_size("3M"), Ok(3 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        for wrong in ["", "k", "4kk", "-1", "4 k", "0x10", "1.5M", "20000000000G", "4ä"] {
            assert!(parse_size(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn bytes() {
        assert_eq!(parse_byte("0"), Ok(0));
        assert_eq!(parse_byte("255"), Ok(255));
        assert_eq!(parse_byte("0xfF"), Ok(255));
        for wrong in ["", "256", "-1", "0x", "0x100", "a"] {
            assert!(parse_byte(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_engine_has_a_name_and_qemu_has_others() {
        for &engine in Engine::ALL {
            assert_eq!(parse_engine(&engine.to_string()), Ok(Choice::Engine(engine)));
        }
        assert_eq!(parse_engine("auto"), Ok(Choice::Auto));
        assert_eq!(parse_engine("io_uring"), Ok(Choice::Engine(Engine::Ring)));
        assert_eq!(parse_engine("threads"), Ok(Choice::Engine(Engine::Workers)));
        assert!(parse_engine("steam").is_err_and(|error| error.contains("workers")));
    }
}
