//! What a run has measured, for people or for programs.

use std::io::{self, Write};

use crate::cli::{Format, Plan};
use crate::image::Image;
use crate::run::Outcome;

/// Prints the outcome of a run in the format that the plan asks for.
pub fn print(plan: &Plan, image: &Image, outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    match plan.format {
        Format::Text => print_text(plan, image, outcome, out),
        Format::Tsv => print_tsv(plan, image, outcome, out),
    }
}

const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)];

impl Outcome {
    fn iops(&self) -> f64 {
        self.ios as f64 / self.elapsed.as_secs_f64()
    }

    fn megabytes_per_second(&self, plan: &Plan) -> f64 {
        self.iops() * plan.block_size as f64 / 1e6
    }

    fn per_io(&self, amount: f64) -> f64 {
        amount / self.ios.max(1) as f64
    }

    fn cpu_ns_per_io(&self) -> f64 {
        self.per_io(self.cpu.as_nanos() as f64)
    }
}

fn print_text(plan: &Plan, image: &Image, outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let calls = &outcome.calls;

    writeln!(out, "image       {}, {} bytes, {}", image.name, image.size, cache(image))?;
    write!(out, "run         {} {}s of {} bytes", order(plan), operation(plan), plan.block_size)?;
    writeln!(out, " at depth {}, seed {}", plan.depth, plan.seed)?;
    writeln!(out, "engine      {} ({})", outcome.engine, outcome.engine_reason)?;
    writeln!(out, "result      {} I/Os in {:.3} s", outcome.ios, outcome.elapsed.as_secs_f64())?;
    writeln!(out, "iops        {:.0}", outcome.iops())?;
    writeln!(out, "throughput  {:.1} MB/s", outcome.megabytes_per_second(plan))?;
    writeln!(out, "cpu         {:.0} ns per I/O", outcome.cpu_ns_per_io())?;
    write!(out, "syscalls    {:.3} per I/O", outcome.per_io(calls.total() as f64))?;
    let each: Vec<_> = calls.by_name().map(|(name, calls)| format!("{calls} {name}")).collect();
    writeln!(out, " ({})", each.join(", "))?;
    write!(out, "latency    ")?;
    for (name, percentile) in PERCENTILES {
        write!(out, " {name} {:.1} µs,", micros(outcome.latencies.value_at_percentile(percentile)))?;
    }
    writeln!(out, " max {:.1} µs", micros(outcome.latencies.max()))?;
    write!(out, "pool       ")?;
    let pool = pool(outcome);
    for (at, (name, value)) in pool.iter().enumerate() {
        write!(out, "{} {value} {name}", if at > 0 { "," } else { "" })?;
    }
    writeln!(out)?;
    if plan.verify {
        let extent = if plan.write { "the whole image, after the run" } else { "every block read" };
        writeln!(out, "verified    {extent}, pattern seed {}", image.pattern.seed)?;
    }
    Ok(())
}

fn print_tsv(plan: &Plan, image: &Image, outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let micros = |nanos: u64| format!("{:.3}", nanos as f64 / 1e3);
    let mut columns = vec![
        ("engine".to_owned(), outcome.engine.to_owned()),
        ("engine_reason".to_owned(), outcome.engine_reason.replace(['\t', '\n'], " ")),
        ("operation".to_owned(), operation(plan).to_owned()),
        ("order".to_owned(), order(plan).to_owned()),
        ("cache".to_owned(), cache(image).to_owned()),
        ("depth".to_owned(), plan.depth.to_string()),
        ("block_size".to_owned(), plan.block_size.to_string()),
        ("image_size".to_owned(), image.size.to_string()),
        ("elapsed_s".to_owned(), format!("{:.6}", outcome.elapsed.as_secs_f64())),
        ("ios".to_owned(), outcome.ios.to_string()),
        ("iops".to_owned(), format!("{:.1}", outcome.iops())),
        ("mb_per_s".to_owned(), format!("{:.3}", outcome.megabytes_per_second(plan))),
        ("cpu_ns_per_io".to_owned(), format!("{:.1}", outcome.cpu_ns_per_io())),
        ("syscalls_per_io".to_owned(), format!("{:.4}", outcome.per_io(outcome.calls.total() as f64))),
    ];
    for (name, percentile) in PERCENTILES {
        let name = format!("{}_us", name.replace('.', "_"));
        columns.push((name, micros(outcome.latencies.value_at_percentile(percentile))));
    }
    columns.push(("max_us".to_owned(), micros(outcome.latencies.max())));
    columns.push(("verified".to_owned(), if plan.verify { "yes" } else { "no" }.to_owned()));
    for (name, value) in pool(outcome) {
        columns.push((format!("pool_{name}"), value.to_string()));
    }

    let (names, values): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    writeln!(out, "{}", names.join("\t"))?;
    writeln!(out, "{}", values.join("\t"))
}

fn operation(plan: &Plan) -> &'static str {
    if plan.write { "write" } else { "read" }
}

fn order(plan: &Plan) -> &'static str {
    if plan.sequential { "sequential" } else { "random" }
}

fn cache(image: &Image) -> &'static str {
    if image.direct { "direct" } else { "buffered" }
}

fn pool(outcome: &Outcome) -> [(&'static str, u64); 10] {
    let pool = &outcome.pool;
    [
        ("live", pool.live),
        ("idle", pool.idle),
        ("created", pool.created),
        ("hits", pool.hits),
        ("refills", pool.refills),
        ("overflows", pool.overflows),
        ("trimmed", pool.trimmed),
        ("leaked", pool.leaked),
        ("mappings", pool.mappings),
        ("unmappings", pool.unmappings),
    ]
}
