//! Runs a case for all of its contestants.

use std::thread;

use crate::groups::{Case, Contestant, Cores, GROUPS, Method, Park, QUANTITIES, Shortfall};
use crate::measure::{self, Loop, Pinned, Summary};
use crate::parked::{self, Parked};
use crate::report::{self, Row, Unit};

/// How often each contestant of a parked case runs. It takes a process each time, and the figures hardly vary.
const PARKED_ROUNDS: usize = 3;

/// What one parked coroutine may be expected to take: a page of stack, and as much again for everything else.
const MEMORY_PER_PARKED: u64 = 2 * 4096;

/// The hidden command that parks coroutines in a child; its arguments are the case and the runtime.
pub const PARK_COMMAND: &str = "park";

/// Measures a case and returns a row for each quantity and contestant.
pub fn run(case: &Case, rounds: usize) -> Vec<Row> {
    match case.method {
        Method::Timed { cores, units, contestants } => run_timed(case, cores, units, contestants, rounds),
        Method::Parked { count, shortfall, contestants } => run_parked(case, count, shortfall, contestants),
    }
}

fn run_timed(case: &Case, cores: Cores, units: u32, contestants: &[Contestant<Loop>], rounds: usize) -> Vec<Row> {
    if cores == Cores::Two && !thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        report::note(format_args!("{}: left out, it takes two cores", case.name));
        return Vec::new();
    }
    let _pinned = match cores {
        Cores::One => pin(),
        Cores::Two => None,
    };
    let loops: Vec<Loop> = contestants.iter().map(|entry| entry.run).collect();
    let summaries = measure::interleaved(&loops, rounds);
    contestants
        .iter()
        .zip(summaries)
        .map(|(contestant, summary)| Row {
            runtime: contestant.runtime,
            case: case.name.to_owned(),
            summary: summary.divided_by(f64::from(units)),
            unit: Unit::Nanoseconds,
        })
        .collect()
}

/// Pins this thread, and its children, to one core if that is allowed.
fn pin() -> Option<Pinned> {
    Pinned::to_one_core().inspect_err(|error| report::note(format_args!("not pinned to a core: {error}"))).ok()
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
        Method::Timed { .. } => None,
    });
    let (park, count) = entry.expect("the parent asks for what is in the tables");
    parked::report_and_exit(park(count))
}
