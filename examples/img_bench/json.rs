//! The same for programs that want to know all.

use serde_json::{Value, json};

use crate::cli::Statistic;
use crate::image::Target;
use crate::measure::{PERCENTILES, Row};
use crate::plan::{Limit, Op, Plan};
use crate::report::order;

/// The options, the images, and all rows.
pub fn report(plan: &Plan, targets: &[Target], rows: &[Row]) -> Value {
    let images = targets.iter().flat_map(|target| {
        let kind = target.kind;
        target.images.iter().map(move |image| {
            json!({
                "name": image.name,
                "target": kind.to_string(),
                "bytes": image.size,
                "pattern_seed": image.pattern.seed,
            })
        })
    });
    json!({
        "images": images.collect::<Vec<_>>(),
        "order": order(plan),
        "block_size": plan.block_size,
        "step_size": plan.step,
        "offset": plan.offset,
        "threads": plan.threads,
        "seconds": match plan.limit { Limit::Time(time) => Some(time.as_secs_f64()), Limit::Count(_) => None },
        "count": match plan.limit { Limit::Count(count) => Some(count), Limit::Time(_) => None },
        "warm_up_seconds": plan.warm_up.as_secs_f64(),
        "rounds": plan.rounds,
        "statistic": match plan.statistic { Statistic::Best => "best", Statistic::Median => "median" },
        "flush": plan.flush.map(|flush| json!({ "interval": flush.interval, "drain": flush.drain })),
        "rate": plan.rate,
        "verified": plan.verify,
        "seed": plan.seed,
        "runs": rows.iter().map(|row| run(plan, row)).collect::<Vec<_>>(),
    })
}

fn run(plan: &Plan, row: &Row) -> Value {
    let mut run = json!({
        "mode": row.mode.to_string(),
        "target": row.target.to_string(),
        "op": row.op.to_string(),
        "depth": row.depth,
        "iops": row.iops,
        "mb_per_s": row.megabytes_per_second(plan),
        "cpu_ns": row.cpu_ns,
        "syscalls": row.syscalls,
        "max_us": micros(row.max as f64),
        "ios": row.ios,
        "elapsed_s": row.elapsed.as_secs_f64(),
        "engine": row.engine,
        "reads_percent": match row.op { Op::Read => 100, Op::Write => 0, Op::Mixed { reads } => reads },
        "iops_to_raw_ring": row.ratio.map(|ratio| ratio.iops),
        "cpu_ns_beyond_raw_ring": row.ratio.map(|ratio| ratio.cpu_ns_more),
        "histogram_ns": row
            .latencies
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect::<Vec<_>>(),
    });
    for ((name, _), nanos) in PERCENTILES.iter().zip(row.percentiles) {
        run[format!("{}_us", name.replace('.', "_"))] = micros(nanos).into();
    }
    run
}

fn micros(nanos: f64) -> f64 {
    nanos / 1e3
}
