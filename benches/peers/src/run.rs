//! Runs a case for all of its contestants.

use std::io;
use std::thread;
use std::time::Duration;

use crate::groups::{Case, Contestant, Cores, GROUPS, Group, Idle, Method, Park, QUANTITIES, Shortfall};
use crate::limit;
use crate::measure::{self, Core, Loop, Pinned, Summary};
use crate::parked::{self, Parked};
use crate::report::{self, Row, Unit};

/// How often each contestant of a parked case runs. It takes a process each time, and the figures hardly vary.
const PARKED_ROUNDS: usize = 3;

/// How often each contestant of an idle case runs. It takes a while each time.
const IDLE_ROUNDS: usize = 5;

/// What one parked coroutine may be expected to take: a page of stack, and as much again for everything else.
const MEMORY_PER_PARKED: u64 = 2 * 4096;

/// The hidden command that parks coroutines in a child; its arguments are the case and the runtime.
pub const PARK_COMMAND: &str = "park";

/// Measures a case and returns a row for each quantity and contestant.
pub fn run(group: &Group, case: &Case, rounds: usize) -> Vec<Row> {
    match case.method {
        Method::Timed { cores, units, descriptors, contestants } => {
            if let Err(reason) = can_run(cores, descriptors) {
                report::note(format_args!("{}: left out: {reason}", case.name));
                return Vec::new();
            }
            let _pinned = pin_to(cores);
            run_timed(case, units, &supported(group, case, contestants), rounds)
        }
        Method::Block { place, units, contestants } => {
            if let Err(reason) = place() {
                report::note(format_args!("{}: left out: {reason}", case.name));
                return Vec::new();
            }
            let _pinned = pin();
            run_timed(case, units, &supported(group, case, contestants), rounds)
        }
        Method::Idle { length, contestants } => run_idle(case, length, &supported(group, case, contestants)),
        Method::Parked { count, shortfall, contestants } => run_parked(case, count, shortfall, contestants),
    }
}

/// Whether the machine has what a case takes.
fn can_run(cores: Cores, descriptors: u32) -> io::Result<()> {
    if cores == Cores::Two && !thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        return Err(io::Error::other("it takes two cores"));
    }
    limit::allow_descriptors(descriptors)
}

/// The contestants whose runtime the kernel supports.
fn supported<F>(group: &Group, case: &Case, contestants: &'static [Contestant<F>]) -> Vec<&'static Contestant<F>> {
    let is_supported = |contestant: &&Contestant<F>| match group.refusal(contestant.runtime) {
        None => true,
        Some(reason) => {
            report::note(format_args!("{}: {} left out: {reason}", case.name, contestant.runtime));
            false
        }
    };
    contestants.iter().filter(is_supported).collect()
}

fn run_timed(case: &Case, units: u32, contestants: &[&Contestant<Loop>], rounds: usize) -> Vec<Row> {
    let loops: Vec<Loop> = contestants.iter().map(|entry| entry.run).collect();
    let summaries = measure::interleaved(&loops, rounds);
    let summaries = summaries.into_iter().map(|summary| summary.divided_by(f64::from(units)));
    rows(case, contestants, summaries, Unit::Nanoseconds)
}

fn run_idle(case: &Case, length: Duration, contestants: &[&Contestant<Idle>]) -> Vec<Row> {
    let _pinned = pin();
    let mut samples = vec![Vec::with_capacity(IDLE_ROUNDS); contestants.len()];
    for _ in 0..IDLE_ROUNDS {
        for (contestant, samples) in contestants.iter().zip(&mut samples) {
            samples.push((contestant.run)(length).as_secs_f64() * 1e6);
        }
    }
    rows(case, contestants, samples.into_iter().map(Summary::of), Unit::Microseconds)
}

/// A row for each contestant and its figures.
fn rows<F>(
    case: &Case,
    contestants: &[&Contestant<F>],
    summaries: impl Iterator<Item = Summary>,
    unit: Unit,
) -> Vec<Row> {
    let row = |(contestant, summary): (&&Contestant<F>, Summary)| Row {
        runtime: contestant.runtime,
        case: case.name.to_owned(),
        summary,
        unit,
    };
    contestants.iter().zip(summaries).map(row).collect()
}

/// Pins this thread, and its children, if a case takes one core.
fn pin_to(cores: Cores) -> Option<Pinned> {
    match cores {
        Cores::One => pin(),
        Cores::Two => None,
    }
}

/// Pins this thread, and its children, to one core if that is allowed.
fn pin() -> Option<Pinned> {
    Pinned::to(Core::Last).inspect_err(|error| report::note(format_args!("not pinned to a core: {error}"))).ok()
}

fn run_parked(case: &Case, count: usize, shortfall: Shortfall, contestants: &[Contestant<Park>]) -> Vec<Row> {
    let needed = count as u64 * MEMORY_PER_PARKED;
    if parked::available_memory().is_some_and(|available| available < needed) {
        report::note(format_args!("{}: left out, it may take {} GiB", case.name, needed.div_ceil(1 << 30)));
        return Vec::new();
    }
    let _pinned = pin();
    let mut results: Vec<(&'static str, Vec<Parked>)> =
        contestants.iter().map(|contestant| (contestant.runtime, Vec::new())).collect();
    for round in 0..PARKED_ROUNDS {
        results.retain_mut(|(runtime, results)| {
            let parked = match parked::in_a_child(PARK_COMMAND, &[case.name, runtime]) {
                Ok(parked) => parked,
                Err(reason) => {
                    report::note(format_args!("{}: {runtime} left out: {reason}", case.name));
                    return false;
                }
            };
            let stays = match shortfall {
                Shortfall::Report => parked.reached > 0,
                Shortfall::LeaveOut => parked.reached == count,
            };
            if round == 0 && parked.reached < count {
                report::note(format_args!(
                    "{}: {runtime} reached {} of {count}{}: {}",
                    case.name,
                    parked.reached,
                    if stays { "" } else { " and is left out" },
                    parked.failure.as_deref().unwrap_or("no reason given"),
                ));
            }
            results.push(parked);
            stays
        });
    }

    let row_names = case.row_names();
    row_names
        .iter()
        .zip(QUANTITIES)
        .flat_map(|(row_name, quantity)| {
            results.iter().map(|(runtime, results)| Row {
                runtime,
                case: row_name.clone(),
                summary: Summary::of(results.iter().map(quantity.of).collect()),
                unit: quantity.unit,
            })
        })
        .collect()
}

/// Parks coroutines for the process that started this one, and ends.
pub fn park_for_parent(case_name: &str, runtime: &str) -> ! {
    let cases = GROUPS.iter().flat_map(|group| group.cases);
    let entry = cases.filter(|case| case.name == case_name).find_map(|case| match case.method {
        Method::Parked { count, contestants, .. } => contestants
            .iter()
            .find(|contestant| contestant.runtime == runtime)
            .map(|contestant| (contestant.run, count)),
        Method::Timed { .. } | Method::Block { .. } | Method::Idle { .. } => None,
    });
    let (park, count) = entry.expect("the parent asks for what is in the tables");
    parked::report_and_exit(park(count))
}
