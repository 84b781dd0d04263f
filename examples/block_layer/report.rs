//! What is printed.

use std::io::{self, Write};

use crate::cli::Options;
use crate::device::Way;
use crate::workload::Outcome;

/// Prints the best round of each way, and how the last one ended.
pub fn print(options: &Options, outcomes: &[(Way, Outcome)], out: &mut dyn Write) -> io::Result<()> {
    let Options { depth, requests, writes, rounds, .. } = options;
    let (_, last) = outcomes.last().expect("there is a round at least");
    writeln!(out, "chain     {}", last.chain)?;
    writeln!(
        out,
        "workload  {requests} requests of 4096 bytes, {writes} % writes, depth {depth}, best of {rounds} rounds\n"
    )?;
    writeln!(out, "{:<20}{:>10}{:>14}{:>14}{:>14}", "", "bypassed", "by coroutine", "ns/request", "requests/s")?;
    let bypass = print_best(options, outcomes, Way::BypassIfPossible, "bypass if possible", out)?;
    let coroutines = print_best(options, outcomes, Way::Coroutines, "coroutines only", out)?;
    let difference = coroutines - bypass;
    writeln!(out, "{:<20}{:>52}", "difference", format!("{difference:+.0} ns ({:.2} x)", coroutines / bypass))?;

    let interrupted: usize = outcomes.iter().map(|(_, outcome)| outcome.interrupted).sum();
    let refused: u64 = outcomes.iter().map(|(_, outcome)| outcome.counts.refused).sum();
    let lost: u64 = outcomes.iter().map(|(_, outcome)| outcome.lost).sum();
    writeln!(out, "\nshutdowns {interrupted} requests in flight, {refused} refused, {lost} lost")
}

/// Prints a way's best round, and returns its nanoseconds per request.
fn print_best(
    options: &Options,
    outcomes: &[(Way, Outcome)],
    way: Way,
    name: &str,
    out: &mut dyn Write,
) -> io::Result<f64> {
    let of_way = outcomes.iter().filter(|(other, _)| *other == way).map(|(_, outcome)| outcome);
    let best = of_way.min_by_key(|outcome| outcome.elapsed).expect("there is a round of each");
    let each = best.elapsed.as_secs_f64() / options.requests as f64;
    let (bypassed, by_coroutine) = (best.counts.bypassed, best.counts.by_coroutine);
    writeln!(out, "{name:<20}{bypassed:>10}{by_coroutine:>14}{:>14.0}{:>14.0}", each * 1e9, 1.0 / each)?;
    Ok(each * 1e9)
}
