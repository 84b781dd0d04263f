//! The command line, and the plan that a valid one amounts to.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::Error;
use crate::engine::Choice;

/// Sectors of this size are what disks, `O_DIRECT` and the pattern are made of.
pub const SECTOR: u64 = 512;

const DEFAULT_SIZE: u64 = 256 << 20;
const DEFAULT_SECONDS: f64 = 3.0;

/// Above this, the buffers of all slots together are taken for a mistake.
const MOST_BUFFER_BYTES: u64 = 1 << 30;

/// A buffer takes at least a page.
const LEAST_BUFFER_BYTES: u64 = 4096;

const LONG_HELP: &str = "\
Reads a raw disk image, or with --write overwrites it, at a queue depth with one coroutine per slot, and prints I/Os \
per second, MB/s, CPU time and system calls per I/O, latency percentiles and what the coroutine pool did.

Without FILE it makes a temporary image in $TMPDIR (or /tmp), fills it, and deletes it at the end.";

const PATTERN_AND_TSV: &str = "\
The pattern:
  Each 512-byte sector holds a magic number, its own offset in the image, the seed, and bytes derived from both.
  A temporary image is filled with it, and so is all of FILE by --write before the timed run, which then overwrites
  blocks with the same bytes. So --verify on FILE works after any completed --write run (without --no-fill),
  whatever its options were: the seed is read from the first sector.

Figures:
  MB/s counts 10^6 bytes. CPU time is getrusage's user + system time of the process, with the pattern's share if
  --write or --verify is on. System calls are those of the engine (io_submit, eventfd reads, io_getevents, or
  pread/pwrite of the helper thread); the event loop's own waits are not in them. A latency spans from the request
  until its coroutine runs again. Linux AIO is asynchronous on direct files only: with --buffered, io_submit itself
  waits for the data.

--format tsv:
  One header line and one row, separated by tabs; times in the unit that the column's name ends in:
  engine, engine_reason, operation (read|write), order (random|sequential), cache (direct|buffered), depth,
  block_size, image_size, elapsed_s, ios, iops, mb_per_s, cpu_ns_per_io, syscalls_per_io, p50_us, p90_us, p99_us,
  p99_9_us, max_us, verified (yes|no), pool_live, pool_idle, pool_created, pool_hits, pool_refills, pool_overflows,
  pool_trimmed, pool_leaked, pool_mappings, pool_unmappings. Notes go to stderr.

Exit code: 0 after a complete run, 1 after an error, 2 after a wrong command line.";

/// Benchmark of reads or writes on a raw disk image, one coroutine per slot of the queue.
#[derive(Debug, Parser)]
#[command(name = "img_bench", long_about = LONG_HELP, after_long_help = PATTERN_AND_TSV)]
pub struct Options {
    /// Raw image file or block device; a temporary image if left out
    file: Option<PathBuf>,

    /// Requests kept in flight, each by its own coroutine
    #[arg(long, value_name = "N", default_value_t = 64)]
    depth: usize,

    /// Bytes per request; suffixes k, M and G are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = parse_size)]
    block_size: u64,

    /// Blocks in order, from the first one again after the last
    #[arg(long, conflicts_with = "random")]
    sequential: bool,

    /// Blocks in random order (the default)
    #[arg(long)]
    random: bool,

    /// Bypass the page cache (O_DIRECT), or fail; the default where the file system allows it
    #[arg(long, conflicts_with = "buffered")]
    direct: bool,

    /// Go through the page cache
    #[arg(long)]
    buffered: bool,

    /// End after N requests
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    count: Option<u64>,

    /// End after S seconds (3 unless --count is given)
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,

    /// OVERWRITES ALL DATA IN FILE, without asking: fills it with the pattern, then times writes
    ///
    /// All of FILE is filled, untimed, before the writes that are timed. Whatever was in FILE is lost.
    #[arg(long)]
    write: bool,

    /// With --write: leave blocks that the timed run doesn't reach as they are
    ///
    /// A later --verify fails on those blocks.
    #[arg(long, requires = "write", conflicts_with = "verify")]
    no_fill: bool,

    /// Check all data that is read against the pattern
    ///
    /// The run ends at the first mismatch, and names its offset. FILE must carry the pattern from an earlier --write
    /// run. With --write, the whole image is read back and checked after the timed run.
    #[arg(long)]
    verify: bool,

    /// How requests reach the kernel; auto takes linux-aio where it can be had
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    engine: Choice,

    /// Seed of the random order, and of the pattern where that is written
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Size of the temporary image (256M unless given)
    #[arg(long, value_name = "SIZE", conflicts_with = "file", value_parser = parse_size)]
    size: Option<u64>,

    /// How the result is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A few lines for people
    Text,
    /// A header line and one row; columns are listed by --help
    Tsv,
}

/// The page cache, as asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    DirectIfPossible,
    Direct,
    Buffered,
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    Count(u64),
    Time(Duration),
}

/// Where the data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Temporary { size: u64 },
}

/// A checked command line.
#[derive(Clone, Debug)]
pub struct Plan {
    pub source: Source,
    pub depth: usize,
    pub block_size: usize,
    pub sequential: bool,
    pub cache: Cache,
    pub limit: Limit,
    pub write: bool,
    pub fill: bool,
    pub verify: bool,
    pub engine: Choice,
    pub seed: u64,
    pub format: Format,
}

impl Options {
    /// Checks what needs no look at the machine.
    pub fn plan(&self) -> Result<Plan, Error> {
        for (option, value) in [
            ("--depth", Some(self.depth as u64)),
            ("--block-size", Some(self.block_size)),
            ("--count", self.count),
            ("--size", self.size),
        ] {
            if value == Some(0) {
                return Err(format!("{option} must be at least 1").into());
            }
        }
        if self.direct && !self.block_size.is_multiple_of(SECTOR) {
            return Err(format!(
                "--direct needs a block size that is a multiple of {SECTOR}, and {} is not",
                self.block_size
            )
            .into());
        }
        let buffers = (self.depth as u64).checked_mul(self.block_size.max(LEAST_BUFFER_BYTES));
        if buffers.is_none_or(|bytes| bytes > MOST_BUFFER_BYTES) {
            return Err(format!(
                "--depth {} with --block-size {} needs more than {MOST_BUFFER_BYTES} bytes of buffers",
                self.depth, self.block_size
            )
            .into());
        }

        Ok(Plan {
            source: self.source()?,
            depth: self.depth,
            block_size: self.block_size as usize,
            sequential: self.sequential,
            cache: match (self.direct, self.buffered) {
                (true, _) => Cache::Direct,
                (_, true) => Cache::Buffered,
                _ => Cache::DirectIfPossible,
            },
            limit: self.limit()?,
            write: self.write,
            fill: self.write && !self.no_fill,
            verify: self.verify,
            engine: self.engine,
            seed: self.seed,
            format: self.format,
        })
    }

    fn source(&self) -> Result<Source, Error> {
        if let Some(path) = &self.file {
            return Ok(Source::File(path.clone()));
        }
        let size = self.size.unwrap_or_else(|| {
            let whole_blocks = DEFAULT_SIZE - DEFAULT_SIZE % self.block_size;
            whole_blocks.max(self.block_size)
        });
        check_whole_blocks("the temporary image", size, self.block_size)?;
        Ok(Source::Temporary { size })
    }

    fn limit(&self) -> Result<Limit, Error> {
        if let Some(count) = self.count {
            return Ok(Limit::Count(count));
        }
        let seconds = self.seconds.unwrap_or(DEFAULT_SECONDS);
        match Duration::try_from_secs_f64(seconds) {
            Ok(time) if !time.is_zero() => Ok(Limit::Time(time)),
            _ => Err(format!("--seconds must be a time above 0, and {seconds} is not").into()),
        }
    }
}

/// Refuses an image that the last block would stick out of.
pub fn check_whole_blocks(what: &str, size: u64, block_size: u64) -> Result<(), Error> {
    if size.is_multiple_of(block_size) {
        return Ok(());
    }
    Err(format!("the size of {what}, {size} bytes, is not a multiple of the block size, {block_size} bytes").into())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(args: &[&str]) -> Result<Plan, String> {
        Options::try_parse_from([&["img_bench"], args].concat())
            .map_err(|error| error.to_string())
            .and_then(|options| options.plan().map_err(|error| error.to_string()))
    }

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
    fn defaults() {
        let plan = plan(&[]).unwrap();
        assert_eq!(plan.source, Source::Temporary { size: 256 << 20 });
        assert_eq!((plan.depth, plan.block_size), (64, 4096));
        assert_eq!(plan.limit, Limit::Time(Duration::from_secs(3)));
        assert_eq!(plan.cache, Cache::DirectIfPossible);
        assert!(!plan.sequential && !plan.write && !plan.verify);
    }

    #[test]
    fn the_default_image_holds_whole_blocks() {
        let temporary = |args: &[&str]| match plan(args).unwrap().source {
            Source::Temporary { size } => size,
            Source::File(path) => panic!("{path:?}"),
        };
        assert_eq!(temporary(&["--block-size", "1000"]) % 1000, 0);
        assert_eq!(temporary(&["--block-size", "1G", "--depth", "1"]), 1 << 30);
    }

    #[test]
    fn contradictions_are_refused() {
        for args in [
            &["--direct", "--buffered"][..],
            &["--random", "--sequential"],
            &["--count", "1", "--seconds", "1"],
            &["--size", "1M", "disk.img"],
            &["--no-fill"],
            &["--write", "--no-fill", "--verify"],
        ] {
            assert!(plan(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn impossible_values_are_named() {
        for (args, part) in [
            (&["--depth", "0"][..], "--depth"),
            (&["--block-size", "0"], "--block-size"),
            (&["--count", "0"], "--count"),
            (&["--size", "0"], "--size"),
            (&["--seconds", "0"], "--seconds"),
            (&["--seconds", "nan"], "--seconds"),
            (&["--seconds", "1e300"], "--seconds"),
            (&["--seconds=-1"], "--seconds"),
            (&["--direct", "--block-size", "1000"], "multiple of 512"),
            (&["--size", "10000", "--block-size", "4k"], "10000"),
            (&["--depth", "1000000", "--block-size", "1M"], "buffers"),
            (&["--depth", "1000000", "--block-size", "1"], "buffers"),
        ] {
            let error = plan(args).unwrap_err();
            assert!(error.contains(part), "{args:?}: {error}");
        }
    }
}
