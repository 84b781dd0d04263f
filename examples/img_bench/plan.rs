//! What a valid command line amounts to.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use aioco::block::Engine;
use clap::ValueEnum;

use crate::Error;
use crate::cli::{CacheMode, Choice, Format, Options, Statistic, Target};
use crate::mode::Mode;

/// Sectors of this size are what disks, `O_DIRECT` and the pattern are made of.
pub const SECTOR: u64 = 512;

const DEFAULT_SIZE: u64 = 256 << 20;
const DEFAULT_SIZE_OF_MANY: u64 = 64 << 20;
const DEFAULT_SECONDS: f64 = 3.0;
const DEFAULT_SECONDS_OF_MANY: f64 = 0.1;
const DEFAULT_ROUNDS: usize = 7;
const DEFAULT_DEPTH: usize = 64;
const COMPARED_DEPTHS: [usize; 3] = [1, 8, 64];
const PLOTTED_DEPTHS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Above this, the buffers of all slots together are taken for a mistake.
const MOST_BUFFER_BYTES: u64 = 1 << 30;

/// A buffer takes at least a page.
const LEAST_BUFFER_BYTES: u64 = 4096;

const MOST_THREADS: usize = 256;

/// A checked command line.
#[derive(Clone, Debug)]
pub struct Plan {
    pub targets: Vec<Images>,
    /// Whether targets and modes that can't be had are left out with a note, instead of being an error.
    pub may_leave_out: bool,
    pub modes: Vec<Mode>,
    pub ops: Vec<Op>,
    pub depths: Vec<usize>,
    pub threads: usize,
    pub block_size: usize,
    pub sequential: bool,
    /// Distance of offsets, where they go up.
    pub step: u64,
    /// The first offset.
    pub offset: u64,
    pub limit: Limit,
    pub warm_up: Duration,
    pub rounds: usize,
    pub statistic: Statistic,
    pub flush: Option<Flush>,
    pub rate: Option<f64>,
    /// Whether images are filled with the pattern before they are written to.
    pub fill: bool,
    /// The byte that is written, if it isn't the pattern.
    pub byte: Option<u8>,
    pub verify: bool,
    pub engine: Option<Engine>,
    pub polling: Duration,
    pub seed: u64,
    pub format: Format,
    pub plot: Option<PathBuf>,
    pub quiet: bool,
}

/// Images that are used together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    pub source: Source,
    pub cache: Cache,
}

/// Where the data is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Files(Vec<PathBuf>),
    Temporary { size: u64, place: Place },
}

/// Where a temporary image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the folder for temporary files, wherever that is.
    Anywhere,
    /// On a file system that isn't memory.
    Disk,
    /// On one that is.
    Memory,
}

/// How files are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    pub direct: Direct,
    /// Whether a write is done when its data is stable (`O_DSYNC`).
    pub stable: bool,
}

/// Past the page cache?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    Yes,
    No,
    IfPossible,
}

/// What requests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    Write,
    /// So many of a hundred are reads.
    Mixed {
        reads: u8,
    },
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// After so many requests.
    Count(u64),
    Time(Duration),
}

/// When files are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// After so many requests.
    pub interval: u64,
    /// Whether nothing else is under way meanwhile.
    pub drain: bool,
}

impl Op {
    pub fn writes(self) -> bool {
        self != Op::Read
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Mixed { .. } => "mixed",
        })
    }
}

impl Plan {
    /// Checks what needs no look at the machine.
    pub fn new(options: Options) -> Result<Plan, Error> {
        check_counts(&options)?;
        let modes = match (options.compare, options.mode.is_empty()) {
            (true, _) => Mode::value_variants().to_vec(),
            (false, true) => vec![Mode::Coroutine],
            (false, false) => without_repetitions(&options.mode),
        };
        let depths = depths(&options, &modes)?;
        check_buffers(&options, &depths)?;
        let ops = ops(&options);
        let writes = ops.iter().any(|op| op.writes());
        check_writing_options(&options, writes)?;
        let cache_mode = cache_mode(&options);
        let flush = flush(&options, &modes, &depths)?.filter(|_| cache_mode != Some(CacheMode::Unsafe));
        let targets = targets(&options, cache(cache_mode))?;
        let step = options.step_size.filter(|&step| step > 0).unwrap_or(options.block_size);
        if targets.iter().any(|images| images.cache.direct == Direct::Yes) {
            for (what, value) in
                [("--block-size", options.block_size), ("--step-size", step), ("--offset", options.offset)]
            {
                if !value.is_multiple_of(SECTOR) {
                    let reason = format!("direct I/O needs multiples of {SECTOR}, and {what} {value} is not one");
                    return Err(reason.into());
                }
            }
        }
        let engine = match options.engine()? {
            Choice::Auto => None,
            Choice::Engine(engine) => Some(engine),
        };
        if engine.is_some() && !modes.iter().any(|mode| mode.is_aioco()) {
            return Err(format!("--engine is about aioco's requests, and mode {} makes none", modes[0]).into());
        }
        let combinations = targets.len() * modes.len() * ops.len() * depths.len();
        let limit = limit(&options, combinations > 1)?;
        let temporary = options.files.is_empty();
        Ok(Plan {
            may_leave_out: options.compare,
            rounds: options.rounds.unwrap_or(if modes.len() > 1 { DEFAULT_ROUNDS } else { 1 }),
            threads: options.threads,
            block_size: options.block_size as usize,
            sequential: options.sequential || options.step_size.is_some(),
            step,
            offset: options.offset,
            limit,
            warm_up: seconds("--warm-up", options.warm_up)?,
            statistic: options.statistic,
            flush,
            rate: rate(&options)?,
            fill: writes && !options.no_fill && options.pattern.is_none(),
            byte: options.pattern.or((temporary && !options.verify).then_some(0)),
            verify: options.verify,
            engine,
            polling: Duration::from_micros(options.polling),
            seed: options.seed,
            format: options.format,
            quiet: options.quiet,
            plot: options.plot,
            targets,
            modes,
            ops,
            depths,
        })
    }

    /// How deep a mode's queue is where others have `depth`.
    pub fn depth_of(mode: Mode, depth: usize) -> usize {
        if mode == Mode::Pread { 1 } else { depth }
    }
}

fn check_counts(options: &Options) -> Result<(), Error> {
    let counts = [
        ("--threads", Some(options.threads as u64)),
        ("--block-size", Some(options.block_size)),
        ("--count", options.count),
        ("--size", options.size),
        ("--rounds", options.rounds.map(|rounds| rounds as u64)),
    ];
    let depths = options.depth.iter().map(|&depth| ("--depth", Some(depth as u64)));
    for (option, value) in depths.chain(counts) {
        if value == Some(0) {
            return Err(format!("{option} must be at least 1").into());
        }
    }
    if options.threads > MOST_THREADS {
        return Err(format!("--threads {} are more than the {MOST_THREADS} there may be", options.threads).into());
    }
    if options.block_size > i32::MAX as u64 {
        return Err(format!("--block-size {} is more than one system call moves", options.block_size).into());
    }
    Ok(())
}

fn depths(options: &Options, modes: &[Mode]) -> Result<Vec<usize>, Error> {
    let only_pread = modes == [Mode::Pread];
    if only_pread && options.depth.iter().any(|&depth| depth != 1) {
        return Err("--mode pread makes one request after the other, so its --depth is 1".into());
    }
    if !options.depth.is_empty() {
        return Ok(without_repetitions(&options.depth));
    }
    Ok(if only_pread {
        vec![1]
    } else if options.plot.is_some() {
        PLOTTED_DEPTHS.to_vec()
    } else if options.compare {
        COMPARED_DEPTHS.to_vec()
    } else {
        vec![DEFAULT_DEPTH]
    })
}

fn without_repetitions<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let mut kept = Vec::new();
    list.iter().for_each(|&item| {
        if !kept.contains(&item) {
            kept.push(item);
        }
    });
    kept
}

fn check_buffers(options: &Options, depths: &[usize]) -> Result<(), Error> {
    let depth = depths.iter().copied().max().unwrap_or(1);
    let slots = (depth as u64).checked_mul(options.threads as u64);
    let bytes = slots.and_then(|slots| slots.checked_mul(options.block_size.max(LEAST_BUFFER_BYTES)));
    if bytes.is_none_or(|bytes| bytes > MOST_BUFFER_BYTES) {
        let block_size = options.block_size;
        return Err(format!(
            "--depth {depth} with --block-size {block_size} needs more than {MOST_BUFFER_BYTES} bytes of buffers"
        )
        .into());
    }
    Ok(())
}

fn ops(options: &Options) -> Vec<Op> {
    match options.mixed {
        Some(reads) => vec![Op::Mixed { reads }],
        None if options.write => vec![Op::Write],
        None if options.compare && options.files.is_empty() => vec![Op::Read, Op::Write],
        None => vec![Op::Read],
    }
}

fn check_writing_options(options: &Options, writes: bool) -> Result<(), Error> {
    let given = [
        ("--no-fill", options.no_fill),
        ("--pattern", options.pattern.is_some()),
        ("--flush-interval", options.flush_interval.is_some_and(|interval| interval > 0)),
    ];
    match given.into_iter().find(|&(_, is_given)| is_given && !writes) {
        Some((option, _)) => Err(format!("{option} is about writing, which takes --write or --mixed").into()),
        None => Ok(()),
    }
}

fn flush(options: &Options, modes: &[Mode], depths: &[usize]) -> Result<Option<Flush>, Error> {
    let Some(interval) = options.flush_interval.filter(|&interval| interval > 0) else { return Ok(None) };
    let depth = if modes == [Mode::Pread] { 1 } else { depths.iter().copied().max().unwrap_or(1) };
    if interval < depth as u64 {
        return Err(format!("--flush-interval {interval} can't be smaller than the depth, {depth}").into());
    }
    Ok(Some(Flush { interval, drain: !options.no_drain }))
}

fn cache_mode(options: &Options) -> Option<CacheMode> {
    match (options.direct, options.buffered) {
        (true, _) => Some(CacheMode::None),
        (_, true) => Some(CacheMode::Writeback),
        _ => options.cache,
    }
}

fn cache(mode: Option<CacheMode>) -> Option<Cache> {
    Some(match mode? {
        CacheMode::None => Cache { direct: Direct::Yes, stable: false },
        CacheMode::Directsync => Cache { direct: Direct::Yes, stable: true },
        CacheMode::Writeback | CacheMode::Unsafe => Cache { direct: Direct::No, stable: false },
        CacheMode::Writethrough => Cache { direct: Direct::No, stable: true },
    })
}

fn targets(options: &Options, cache: Option<Cache>) -> Result<Vec<Images>, Error> {
    let or_default = cache.unwrap_or(Cache { direct: Direct::IfPossible, stable: false });
    if !options.files.is_empty() {
        return Ok(vec![Images { source: Source::Files(options.files.clone()), cache: or_default }]);
    }
    let targets = match (options.compare && cache.is_none(), options.target.is_empty()) {
        (true, true) => vec![Target::Disk, Target::PageCache, Target::Tmpfs],
        _ => without_repetitions(&options.target),
    };
    let size = options.size.unwrap_or_else(|| {
        let size = if targets.len() > 1 { DEFAULT_SIZE_OF_MANY } else { DEFAULT_SIZE };
        let whole_blocks = size - size % options.block_size;
        whole_blocks.max(options.block_size + options.offset.next_multiple_of(options.block_size))
    });
    check_whole_blocks("the temporary image", size, options.block_size)?;
    check_offset("the temporary image", size, options.offset, options.block_size)?;
    if targets.is_empty() {
        return Ok(vec![Images { source: Source::Temporary { size, place: Place::Anywhere }, cache: or_default }]);
    }
    let images = |target: Target| {
        let (place, direct) = match target {
            Target::Disk => (Place::Disk, Direct::Yes),
            Target::PageCache => (Place::Disk, Direct::No),
            Target::Tmpfs => (Place::Memory, Direct::No),
        };
        Images { source: Source::Temporary { size, place }, cache: Cache { direct, stable: false } }
    };
    Ok(targets.into_iter().map(images).collect())
}

fn limit(options: &Options, are_many: bool) -> Result<Limit, Error> {
    if let Some(count) = options.count {
        return Ok(Limit::Count(count));
    }
    let default = if are_many { DEFAULT_SECONDS_OF_MANY } else { DEFAULT_SECONDS };
    let time = seconds("--seconds", options.seconds.unwrap_or(default))?;
    if time.is_zero() {
        return Err("--seconds must be a time above 0".into());
    }
    Ok(Limit::Time(time))
}

fn seconds(option: &str, value: f64) -> Result<Duration, Error> {
    /// What instants can hold for sure.
    const MOST: Duration = Duration::from_secs(1 << 30);

    match Duration::try_from_secs_f64(value) {
        Ok(time) if time <= MOST => Ok(time),
        _ => Err(format!("{option} must be a time in seconds, and {value} is not").into()),
    }
}

fn rate(options: &Options) -> Result<Option<f64>, Error> {
    /// Beyond that, the time between two requests is nothing.
    const RATES: std::ops::RangeInclusive<f64> = 0.001..=1e9;

    match options.rate {
        Some(rate) if !RATES.contains(&rate) => {
            Err(format!("--rate must be from {} to {}, and {rate} is not", RATES.start(), RATES.end()).into())
        }
        rate => Ok(rate),
    }
}

/// Refuses an image that the last block would stick out of.
pub fn check_whole_blocks(what: &str, size: u64, block_size: u64) -> Result<(), Error> {
    if size.is_multiple_of(block_size) {
        return Ok(());
    }
    Err(format!("the size of {what}, {size} bytes, is not a multiple of the block size, {block_size} bytes").into())
}

/// Refuses an image without a block behind the first offset.
pub fn check_offset(what: &str, size: u64, offset: u64, block_size: u64) -> Result<(), Error> {
    if offset.checked_add(block_size).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(format!("{what}, {size} bytes, has no block of {block_size} bytes at --offset {offset}").into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn plan(args: &[&str]) -> Result<Plan, String> {
        Options::try_parse_from([&["img_bench"], args].concat())
            .map_err(|error| error.to_string())
            .and_then(|options| Plan::new(options).map_err(|error| error.to_string()))
    }

    fn temporary_size(args: &[&str]) -> u64 {
        match plan(args).unwrap().targets[0].source {
            Source::Temporary { size, .. } => size,
            Source::Files(ref paths) => panic!("{paths:?}"),
        }
    }

    #[test]
    fn defaults() {
        let plan = plan(&[]).unwrap();
        let source = Source::Temporary { size: 256 << 20, place: Place::Anywhere };
        assert_eq!(plan.targets, [Images { source, cache: Cache { direct: Direct::IfPossible, stable: false } }]);
        assert_eq!((&plan.modes[..], &plan.depths[..], plan.block_size), (&[Mode::Coroutine][..], &[64][..], 4096));
        assert_eq!(plan.limit, Limit::Time(Duration::from_secs(3)));
        assert_eq!((plan.rounds, &plan.ops[..], plan.engine), (1, &[Op::Read][..], None));
        assert!(!plan.sequential && !plan.verify && !plan.fill);
    }

    #[test]
    fn a_comparison_is_of_all_there_is() {
        let compared = plan(&["--compare"]).unwrap();
        assert_eq!((compared.targets.len(), compared.modes.len(), compared.rounds), (3, 5, 7));
        assert_eq!((&compared.ops[..], &compared.depths[..]), (&[Op::Read, Op::Write][..], &[1, 8, 64][..]));
        let of_file = plan(&["--compare", "--depth", "2,2,4", "disk.img"]).unwrap();
        assert_eq!((of_file.targets.len(), &of_file.ops[..]), (1, &[Op::Read][..]));
        assert_eq!(of_file.depths, [2, 4]);
    }

    #[test]
    fn qemu_options() {
        let line = "-c 75000 -d 8 -s 64k -S 0 -o 1M -t writeback -i io_uring -f raw -U -q disk.img";
        let plan = plan(&line.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!((plan.limit, &plan.depths[..], plan.block_size), (Limit::Count(75000), &[8][..], 64 << 10));
        assert_eq!((plan.sequential, plan.step, plan.offset), (true, 64 << 10, 1 << 20));
        assert_eq!(plan.targets[0].cache, Cache { direct: Direct::No, stable: false });
        assert_eq!((plan.engine, plan.quiet), (Some(Engine::Ring), true));
    }

    #[test]
    fn flushes_are_as_in_qemu() {
        let flush = |args: &[&str]| plan(&[&["-w", "-d", "8"], args].concat()).unwrap().flush;
        assert_eq!(flush(&["--flush-interval", "8"]), Some(Flush { interval: 8, drain: true }));
        assert_eq!(flush(&["--flush-interval", "9", "--no-drain"]), Some(Flush { interval: 9, drain: false }));
        assert_eq!(flush(&["--flush-interval", "0"]), None);
        assert_eq!(flush(&["--flush-interval", "8", "--cache", "unsafe"]), None);
        assert!(plan(&["-w", "-d", "8", "--flush-interval", "7"]).is_err());
        assert!(plan(&["-d", "8", "--flush-interval", "8"]).is_err());
    }

    #[test]
    fn the_pattern_is_worked_out_where_it_is_wanted() {
        let fill_and_byte = |args: &[&str]| plan(args).map(|plan| (plan.fill, plan.byte)).unwrap();
        assert_eq!(fill_and_byte(&["-w", "disk.img"]), (true, None));
        assert_eq!(fill_and_byte(&["-w", "--no-fill", "disk.img"]), (false, None));
        assert_eq!(fill_and_byte(&["-w", "--pattern", "0x1f", "disk.img"]), (false, Some(31)));
        assert_eq!(fill_and_byte(&["-w"]), (true, Some(0)));
        assert_eq!(fill_and_byte(&["--mixed", "70", "--verify"]), (true, None));
    }

    #[test]
    fn the_default_image_holds_whole_blocks() {
        assert_eq!(temporary_size(&["--block-size", "1000"]) % 1000, 0);
        assert_eq!(temporary_size(&["--block-size", "1G", "--depth", "1"]), 1 << 30);
        assert_eq!(temporary_size(&["--block-size", "1G", "--depth", "1", "--offset", "1"]), 2 << 30);
    }

    #[test]
    fn contradictions_are_refused() {
        for args in [
            &["--direct", "--buffered"][..],
            &["--direct", "--cache", "none"],
            &["--random", "--sequential"],
            &["--random", "--step-size", "8k"],
            &["--count", "1", "--seconds", "1"],
            &["--size", "1M", "disk.img"],
            &["--target", "disk", "disk.img"],
            &["--target", "disk", "--buffered"],
            &["--compare", "--mode", "pread"],
            &["--write", "--mixed", "50"],
            &["--write", "--no-fill", "--verify"],
            &["--write", "--pattern", "1", "--verify"],
            &["--no-drain"],
            &["--no-fill"],
            &["--pattern", "1"],
            &["--native", "--engine", "ring"],
            &["--mode", "raw-ring", "--engine", "ring"],
            &["--mode", "raw-aio", "--native"],
        ] {
            assert!(plan(args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn impossible_values_are_named() {
        for (args, part) in [
            (&["--depth", "0"][..], "--depth"),
            (&["--depth", "1,0"], "--depth"),
            (&["--threads", "0"], "--threads"),
            (&["--threads", "1000"], "--threads"),
            (&["--rounds", "0"], "--rounds"),
            (&["--block-size", "0"], "--block-size"),
            (&["--block-size", "4G", "--depth", "1"], "--block-size"),
            (&["--count", "0"], "--count"),
            (&["--size", "0"], "--size"),
            (&["--seconds", "0"], "--seconds"),
            (&["--seconds", "nan"], "--seconds"),
            (&["--seconds", "1e300"], "--seconds"),
            (&["--seconds", "1e15"], "--seconds"),
            (&["--seconds=-1"], "--seconds"),
            (&["--warm-up=-1"], "--warm-up"),
            (&["--rate", "0"], "--rate"),
            (&["--rate", "inf"], "--rate"),
            (&["--mixed", "0"], "mixed"),
            (&["--mixed", "100"], "mixed"),
            (&["--mode", "pread", "--depth", "2"], "pread"),
            (&["--direct", "--block-size", "1000"], "multiples of 512"),
            (&["--direct", "--step-size", "1000"], "multiples of 512"),
            (&["--direct", "--offset", "100"], "multiples of 512"),
            (&["--size", "1M", "--offset", "1M"], "--offset"),
            (&["--size", "10000", "--block-size", "4k"], "10000"),
            (&["--depth", "1000000", "--block-size", "1M"], "buffers"),
            (&["--depth", "1000000", "--block-size", "1"], "buffers"),
            (&["--depth", "100000", "--threads", "200"], "buffers"),
        ] {
            let error = plan(args).unwrap_err();
            assert!(error.contains(part), "{args:?}: {error}");
        }
    }
}
