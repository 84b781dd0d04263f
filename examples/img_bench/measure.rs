//! All combinations of targets, kinds of requests, depths and modes, measured in turn.
//!
//! The modes of one combination take turns, round after round, each time in another order: what the machine does besides
//! then hits all of them alike.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::Error;
use crate::cli::Statistic;
use crate::image::{Kind, Target};
use crate::job::{Job, Signals};
use crate::mode::{self, Mode, Outcome};
use crate::plan::{Limit, Op, Plan};
use crate::progress::Watch;

/// A mode, or a target, that can't be had on this machine.
#[derive(Debug)]
pub struct Unavailable(pub String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// What was measured of one combination.
#[derive(Clone, Debug)]
pub struct Row {
    pub mode: Mode,
    pub target: Kind,
    pub op: Op,
    pub depth: usize,
    pub iops: f64,
    /// Per I/O.
    pub cpu_ns: f64,
    /// Per I/O.
    pub syscalls: f64,
    /// Times in nanoseconds, by the names of [`PERCENTILES`].
    pub percentiles: [f64; PERCENTILES.len()],
    /// Of all rounds.
    pub max: u64,
    /// Of all rounds.
    pub ios: u64,
    /// Of all rounds.
    pub elapsed: Duration,
    /// Of all rounds, in nanoseconds.
    pub latencies: Histogram<u64>,
    pub engine: String,
    /// Against raw-ring, in the same rounds.
    pub ratio: Option<Ratio>,
}

/// Which percentiles of latencies are told.
pub const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)];

/// How a mode compares.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    /// IOPS, as a multiple of the yardstick's.
    pub iops: f64,
    /// CPU time per I/O beyond the yardstick's, in nanoseconds.
    pub cpu_ns_more: f64,
}

/// Measures what the plan asks for.
pub fn measure(plan: &Plan, targets: &[Target]) -> Result<Vec<Row>, Error> {
    let combinations = targets.len() * plan.ops.len() * plan.depths.len();
    let watch = Watch::new(combinations * plan.modes.len() * plan.rounds, plan.quiet);
    let mut missing = Vec::new();
    let mut rows = Vec::new();
    for target in targets {
        for &op in &plan.ops {
            for &depth in &plan.depths {
                rows.extend(measure_modes(plan, target, op, depth, &watch, &mut missing)?);
            }
        }
    }
    drop(watch);
    missing.iter().for_each(|(mode, why)| plan.note(format_args!("{mode} is left out: {why}")));
    if rows.is_empty() { Err("there is nothing left to measure".into()) } else { Ok(rows) }
}

/// The modes' rows for one combination.
fn measure_modes(
    plan: &Plan,
    target: &Target,
    op: Op,
    depth: usize,
    watch: &Watch,
    missing: &mut Vec<(Mode, String)>,
) -> Result<Vec<Row>, Error> {
    let mut outcomes: Vec<Vec<Outcome>> = plan.modes.iter().map(|_| Vec::new()).collect();
    for round in 0..plan.rounds {
        for turn in 0..plan.modes.len() {
            let number = (turn + round) % plan.modes.len();
            let mode = plan.modes[number];
            if missing.iter().any(|&(missing, _)| missing == mode) {
                continue;
            }
            if round == 0 && !plan.warm_up.is_zero() {
                let job = Arc::new(job(plan, target, op, Plan::depth_of(mode, depth), Limit::Time(plan.warm_up), 0));
                mode::run(&job, mode)?;
            }
            let seed = round as u64 + 1;
            let job = Arc::new(job(plan, target, op, Plan::depth_of(mode, depth), plan.limit, seed));
            watch.begin(&job);
            let measured = mode::run(&job, mode);
            watch.end();
            match measured {
                Ok(outcome) => outcomes[number].push(outcome),
                Err(error) if plan.may_leave_out && error.is::<Unavailable>() => {
                    missing.push((mode, error.to_string()))
                }
                Err(error) => return Err(error),
            }
        }
    }
    let measured = plan.modes.iter().zip(outcomes).filter(|(_, outcomes)| !outcomes.is_empty());
    let mut rows = measured
        .map(|(&mode, outcomes)| row(plan, mode, target.kind, op, depth, &outcomes))
        .collect::<Result<Vec<_>, Error>>()?;
    let yardstick = rows.iter().find(|row| row.mode == Mode::RawRing).map(|row| (row.iops, row.cpu_ns));
    if let Some((iops, cpu_ns)) = yardstick {
        for row in rows.iter_mut().filter(|row| row.mode != Mode::RawRing) {
            row.ratio = Some(Ratio { iops: row.iops / iops, cpu_ns_more: row.cpu_ns - cpu_ns });
        }
    }
    Ok(rows)
}

/// All modes have the same offsets in the same round.
fn job(plan: &Plan, target: &Target, op: Op, depth: usize, limit: Limit, round: u64) -> Job {
    Job {
        files: target.extents(plan),
        op,
        depth,
        threads: plan.threads,
        block_size: plan.block_size,
        sequential: plan.sequential,
        step: plan.step,
        limit,
        flush: plan.flush.filter(|_| op.writes()),
        rate: plan.rate,
        seed: plan.seed.wrapping_add(round),
        check: plan.verify,
        byte: plan.byte,
        engine: plan.engine,
        polling: plan.polling,
        signals: Signals::default(),
    }
}

/// One row of several rounds.
fn row(plan: &Plan, mode: Mode, target: Kind, op: Op, depth: usize, outcomes: &[Outcome]) -> Result<Row, Error> {
    let figure = |of: &dyn Fn(&Outcome) -> f64| pick(plan.statistic, outcomes.iter().map(of).collect());
    let per_io = |amount: f64, outcome: &Outcome| amount / outcome.ios.max(1) as f64;
    let mut latencies = Histogram::new_from(&outcomes[0].latencies);
    outcomes.iter().try_for_each(|outcome| latencies.add(&outcome.latencies))?;
    Ok(Row {
        mode,
        target,
        op,
        depth,
        // The least time per I/O.
        iops: 1.0 / figure(&|outcome| per_io(outcome.elapsed.as_secs_f64(), outcome)),
        cpu_ns: figure(&|outcome| per_io(outcome.cpu.as_nanos() as f64, outcome)),
        syscalls: figure(&|outcome| per_io(outcome.calls as f64, outcome)),
        percentiles: PERCENTILES
            .map(|(_, percentile)| figure(&|outcome| outcome.latencies.value_at_percentile(percentile) as f64)),
        max: latencies.max(),
        ios: latencies.len(),
        elapsed: outcomes.iter().map(|outcome| outcome.elapsed).sum(),
        latencies,
        engine: outcomes[0].engine.clone(),
        ratio: None,
    })
}

/// The figure for many.
fn pick(statistic: Statistic, mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    match statistic {
        Statistic::Best => figures[0],
        Statistic::Median => (figures[(figures.len() - 1) / 2] + figures[figures.len() / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_picked() {
        assert_eq!(pick(Statistic::Best, vec![3.0, 1.0, 2.0]), 1.0);
        assert_eq!(pick(Statistic::Median, vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(pick(Statistic::Median, vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(pick(Statistic::Median, vec![4.0]), 4.0);
    }
}
