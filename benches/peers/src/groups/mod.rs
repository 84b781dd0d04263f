//! What there is to measure: groups of cases, each a table of contestants.
//!
//! Adding a case means adding an entry to its group's table; adding a group means adding a file with such a table here
//! and naming it in [`GROUPS`].

mod block;
mod coroutine;
mod event_loop;
mod locks;

use std::io;
use std::time::Duration;

use crate::measure::Loop;
use crate::parked::Parked;
use crate::report::Unit;

/// All groups, in the order in which they run.
pub const GROUPS: &[&Group] = &[&coroutine::GROUP, &event_loop::GROUP, &locks::GROUP, &block::GROUP];

/// Cases that compare the same contestants.
pub struct Group {
    pub name: &'static str,
    pub about: &'static str,
    /// The runtime to which reports relate the others.
    pub baseline: &'static str,
    /// The runtimes that a kernel may refuse to support, each with a function that finds out.
    pub probes: &'static [Contestant<Probe>],
    pub cases: &'static [Case],
}

/// One thing to measure.
pub struct Case {
    pub name: &'static str,
    pub about: &'static str,
    pub method: Method,
}

/// How a case is measured, and for whom.
pub enum Method {
    /// The time a loop takes, per unit of its work.
    Timed {
        cores: Cores,
        /// Into how many units one time around the loop is divided.
        units: u32,
        /// How many descriptors it has open at once.
        descriptors: u32,
        contestants: &'static [Contestant<Loop>],
    },
    /// The time that requests take, on one core.
    Block {
        /// Whether the machine has what they go to.
        place: Probe,
        /// How many requests one time around the loop is.
        units: u32,
        contestants: &'static [Contestant<Loop>],
    },
    /// The processor time that a loop takes for a while.
    Idle { length: Duration, contestants: &'static [Contestant<Idle>] },
    /// What parked coroutines take.
    Parked { count: usize, shortfall: Shortfall, contestants: &'static [Contestant<Park>] },
}

/// A runtime in a case.
pub struct Contestant<F> {
    pub runtime: &'static str,
    pub run: F,
}

/// Finds out whether the kernel supports a runtime, or the machine has a place.
pub type Probe = fn() -> io::Result<()>;

/// Keeps an idle loop for a while, and returns the processor time that it took.
pub type Idle = fn(Duration) -> Duration;

/// Parks as many coroutines as it can, up to a number.
pub type Park = fn(usize) -> Parked;

/// Where a loop runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cores {
    /// Pinned to one core.
    One,
    /// On two threads, placed by the kernel or by the loop.
    Two,
}

/// What becomes of a runtime that can't keep as many coroutines as the case is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shortfall {
    /// It is reported with the number it reached: what one coroutine takes hardly depends on their number.
    Report,
    /// It is left out: reaching the number is the point.
    LeaveOut,
}

/// A figure of parked coroutines.
pub struct Quantity {
    /// What the row's name ends in.
    pub suffix: &'static str,
    pub unit: Unit,
    pub of: fn(&Parked) -> f64,
}

/// The figures of a parked case.
pub const QUANTITIES: &[Quantity] = &[
    Quantity { suffix: "bytes", unit: Unit::Bytes, of: |parked| parked.bytes },
    Quantity { suffix: "maps", unit: Unit::Maps, of: |parked| parked.maps },
    Quantity { suffix: "create", unit: Unit::Nanoseconds, of: |parked| parked.create },
];

impl Group {
    /// Why the kernel doesn't support a runtime, if that is so.
    pub fn refusal(&self, runtime: &str) -> Option<io::Error> {
        let probe = self.probes.iter().find(|probe| probe.runtime == runtime)?;
        (probe.run)().err()
    }
}

impl Case {
    /// The names of the rows it yields: its own, or one for each quantity.
    pub fn row_names(&self) -> Vec<String> {
        match self.method {
            Method::Timed { .. } | Method::Block { .. } | Method::Idle { .. } => vec![self.name.to_owned()],
            Method::Parked { .. } => {
                QUANTITIES.iter().map(|quantity| format!("{}-{}", self.name, quantity.suffix)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::limit;

    fn cases() -> impl Iterator<Item = &'static Case> {
        GROUPS.iter().flat_map(|group| group.cases)
    }

    #[test]
    fn names_are_unique() {
        let mut names = HashSet::new();
        assert!(GROUPS.iter().all(|group| names.insert(group.name)));
        let mut names = HashSet::new();
        assert!(cases().all(|case| names.insert(case.name)));
    }

    #[test]
    fn every_contestant_runs() {
        for group in GROUPS {
            group.cases.iter().for_each(|case| try_out(group, case));
        }
    }

    fn try_out(group: &Group, case: &Case) {
        match case.method {
            Method::Timed { descriptors, contestants, .. } => {
                if limit::allow_descriptors(descriptors).is_ok() {
                    for contestant in supported(group, contestants) {
                        (contestant.run)(2);
                    }
                }
            }
            Method::Block { place, contestants, .. } => {
                if place().is_ok() {
                    for contestant in supported(group, contestants) {
                        (contestant.run)(2);
                    }
                }
            }
            Method::Idle { contestants, .. } => {
                for contestant in supported(group, contestants) {
                    (contestant.run)(Duration::from_millis(1));
                }
            }
            Method::Parked { contestants, .. } => {
                for contestant in supported(group, contestants) {
                    let parked = (contestant.run)(10);
                    assert_eq!(parked.reached, 10, "{}", contestant.runtime);
                    assert_eq!(parked.failure, None, "{}", contestant.runtime);
                }
            }
        }
    }

    fn supported<F>(
        group: &Group,
        contestants: &'static [Contestant<F>],
    ) -> impl Iterator<Item = &'static Contestant<F>> {
        contestants.iter().filter(|contestant| group.refusal(contestant.runtime).is_none())
    }
}
