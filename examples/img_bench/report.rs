//! What was measured, for people or for programs.

use std::io::{self, Write};

use hdrhistogram::Histogram;

use crate::cli::{Format, Statistic};
use crate::image::Target;
use crate::json;
use crate::measure::{PERCENTILES, Row};
use crate::plan::{Op, Plan};

/// The longest bar of a histogram, in characters.
const LONGEST_BAR: u64 = 40;

/// Prints rows in the format that the plan asks for.
pub fn print(plan: &Plan, targets: &[Target], rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    match (plan.format, rows) {
        (Format::Table, [row]) => print_in_full(plan, targets, row, out),
        (Format::Table, rows) => print_table(plan, targets, rows, out),
        (Format::Tsv, rows) => rows.iter().try_for_each(|row| print_fields(row, out)),
        (Format::Json, rows) => {
            serde_json::to_writer_pretty(&mut *out, &json::report(plan, targets, rows))?;
            writeln!(out)
        }
    }
}

impl Row {
    pub fn megabytes_per_second(&self, plan: &Plan) -> f64 {
        self.iops * plan.block_size as f64 / 1e6
    }

    /// A percentile, by its place in [`PERCENTILES`], in microseconds.
    fn micros(&self, place: usize) -> f64 {
        self.percentiles[place] / 1e3
    }
}

fn print_in_full(plan: &Plan, targets: &[Target], row: &Row, out: &mut impl Write) -> io::Result<()> {
    print_images(targets, out)?;
    write!(out, "run         {} {}s of {} bytes", order(plan), operation(row.op), plan.block_size)?;
    write!(out, " at depth {}, mode {}, seed {}", row.depth, row.mode, plan.seed)?;
    print_threads(plan, out)?;
    print_flushes(plan, out)?;
    writeln!(out, "engine      {}", row.engine)?;
    writeln!(out, "result      {} I/Os in {:.3} s", row.ios, row.elapsed.as_secs_f64())?;
    writeln!(out, "iops        {:.0}", row.iops)?;
    writeln!(out, "throughput  {:.1} MB/s", row.megabytes_per_second(plan))?;
    writeln!(out, "cpu         {:.0} ns per I/O", row.cpu_ns)?;
    writeln!(out, "syscalls    {:.3} per I/O", row.syscalls)?;
    write!(out, "latency    ")?;
    for (place, (name, _)) in PERCENTILES.iter().enumerate() {
        write!(out, " {name} {:.1} µs,", row.micros(place))?;
    }
    writeln!(out, " max {:.1} µs", row.max as f64 / 1e3)?;
    print_histogram(&row.latencies, out)?;
    if plan.verify {
        let extent = if row.op.writes() { "the whole image, after the run" } else { "every block read" };
        let seeds = targets.iter().flat_map(|target| &target.images).map(|image| image.pattern.seed.to_string());
        writeln!(out, "verified    {extent}, pattern seed {}", seeds.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

fn print_table(plan: &Plan, targets: &[Target], rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    print_images(targets, out)?;
    write!(out, "runs        {} requests of {} bytes, seed {}", order(plan), plan.block_size, plan.seed)?;
    print_threads(plan, out)?;
    print_flushes(plan, out)?;
    let statistic = match plan.statistic {
        Statistic::Best => "best",
        Statistic::Median => "median",
    };
    writeln!(out, "figures     {statistic} of {} rounds; CPU time and system calls are per I/O", plan.rounds)?;
    let same = |one: &Row, next: &Row| (one.target, one.op) == (next.target, next.op);
    for rows in rows.chunk_by(same) {
        let Row { target, op, .. } = &rows[0];
        writeln!(out, "\n{target}, {}s", operation(*op))?;
        writeln!(
            out,
            "  {:<10}{:>6}{:>10}{:>9}{:>9}{:>10}{:>10}  {:>10}{:>9}",
            "mode", "depth", "IOPS", "CPU ns", "syscalls", "p50 us", "p99 us", "x raw-ring", "CPU ns"
        )?;
        for row in rows {
            write!(out, "  {:<10}{:>6}", row.mode.to_string(), row.depth)?;
            write!(out, "{:>10.0}{:>9.0}{:>9.3}", row.iops, row.cpu_ns, row.syscalls)?;
            write!(out, "{:>10.1}{:>10.1}", row.micros(0), row.micros(2))?;
            if let Some(ratio) = row.ratio {
                write!(out, "  {:>10.3}{:>+9.0}", ratio.iops, ratio.cpu_ns_more)?;
            }
            writeln!(out)?;
        }
        let engines = rows.iter().filter(|row| row.mode.is_aioco());
        for row in first_of_each(engines) {
            writeln!(out, "  engine of {}: {}", row.mode, row.engine)?;
        }
    }
    if plan.verify {
        writeln!(out, "\nverified    yes")?;
    }
    Ok(())
}

/// A row for each mode and engine.
fn first_of_each<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<&'a Row> {
    let mut firsts: Vec<&Row> = Vec::new();
    for row in rows {
        if !firsts.iter().any(|first| (first.mode, &first.engine) == (row.mode, &row.engine)) {
            firsts.push(row);
        }
    }
    firsts
}

fn print_images(targets: &[Target], out: &mut impl Write) -> io::Result<()> {
    for target in targets {
        for image in &target.images {
            writeln!(out, "image       {}, {} bytes, {}", image.name, image.size, target.kind)?;
        }
    }
    Ok(())
}

fn print_threads(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    if plan.threads > 1 {
        write!(out, ", on each of {} threads", plan.threads)?;
    }
    if let Some(rate) = plan.rate {
        write!(out, ", at most {rate} per second")?;
    }
    writeln!(out)
}

fn print_flushes(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    let Some(flush) = plan.flush else { return Ok(()) };
    let drain = if flush.drain { "the queue is drained before" } else { "beside other requests" };
    writeln!(out, "flushes     after every {} requests, {drain}", flush.interval)
}

/// A bar for each power of two.
fn print_histogram(latencies: &Histogram<u64>, out: &mut impl Write) -> io::Result<()> {
    let buckets = buckets(latencies);
    let most = buckets.iter().map(|&(_, count)| count).max().unwrap_or(1);
    for (number, &(below, count)) in buckets.iter().enumerate() {
        let bar = "#".repeat((count * LONGEST_BAR).div_ceil(most) as usize);
        let head = if number == 0 { "histogram" } else { "" };
        let line = format!("{head:<12}{:>11} {count:>9} {bar}", format!("< {}", time(below)));
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// From the least to the greatest latency: powers of two of nanoseconds, and how many are below, but not below the one
/// before.
fn buckets(latencies: &Histogram<u64>) -> Vec<(u64, u64)> {
    let mut buckets: Vec<(u64, u64)> = Vec::new();
    for step in latencies.iter_recorded() {
        let below = (step.value_iterated_to() + 1).next_power_of_two();
        while let Some(&(last, _)) = buckets.last()
            && last < below
        {
            buckets.push((last * 2, 0));
        }
        match buckets.last_mut() {
            Some((_, count)) => *count += step.count_at_value(),
            None => buckets.push((below, step.count_at_value())),
        }
    }
    buckets
}

fn time(nanos: u64) -> String {
    match nanos {
        ..10_000 => format!("{:.2} µs", nanos as f64 / 1e3),
        10_000..10_000_000 => format!("{:.0} µs", nanos as f64 / 1e3),
        _ => format!("{:.0} ms", nanos as f64 / 1e6),
    }
}

fn print_fields(row: &Row, out: &mut impl Write) -> io::Result<()> {
    let Row { mode, target, op, depth, .. } = row;
    write!(out, "{mode}\t{target}\t{op}\t{depth}\t{:.1}\t{:.1}\t{:.4}", row.iops, row.cpu_ns, row.syscalls)?;
    writeln!(out, "\t{:.3}\t{:.3}", row.micros(0), row.micros(2))
}

fn operation(op: Op) -> String {
    match op {
        Op::Mixed { reads } => format!("mixed ({reads} % read) request"),
        op => op.to_string(),
    }
}

pub fn order(plan: &Plan) -> &'static str {
    if plan.sequential { "sequential" } else { "random" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        let mut latencies = Histogram::new(3).unwrap();
        [900, 1023, 1025, 9000].into_iter().for_each(|nanos| latencies.record(nanos).unwrap());
        assert_eq!(buckets(&latencies), [(1024, 2), (2048, 1), (4096, 0), (8192, 0), (16384, 1)]);
        assert_eq!(buckets(&Histogram::new(3).unwrap()), []);
    }
}
