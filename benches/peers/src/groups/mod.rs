//! What there is to measure: groups of cases, each a table of contestants.
//!
//! Adding a case means adding an entry to its group's table; adding a group means adding a file with such a table here
//! and naming it in [`GROUPS`].

mod coroutine;

use crate::measure::Loop;
use crate::parked::Parked;
use crate::report::Unit;

/// All groups, in the order in which they run.
pub const GROUPS: &[&Group] = &[&coroutine::GROUP];

/// Cases that compare the same contestants.
pub struct Group {
    pub name: &'static str,
    pub about: &'static str,
    /// The runtime to which reports relate the others.
    pub baseline: &'static str,
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
        contestants: &'static [Contestant<Loop>],
    },
    /// What parked coroutines take.
    Parked { count: usize, shortfall: Shortfall, contestants: &'static [Contestant<Park>] },
}

/// A runtime in a case.
pub struct Contestant<F> {
    pub runtime: &'static str,
    pub run: F,
}

/// Parks as many coroutines as it can, up to a number.
pub type Park = fn(usize) -> Parked;

/// Where a loop runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cores {
    /// Pinned to one core.
    One,
    /// On two threads, placed by the kernel.
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

impl Case {
    /// The names of the rows it yields: its own, or one for each quantity.
    pub fn row_names(&self) -> Vec<String> {
        match self.method {
            Method::Timed { .. } => vec![self.name.to_owned()],
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
        for case in cases() {
            match &case.method {
                Method::Timed { contestants, .. } => {
                    for contestant in *contestants {
                        (contestant.run)(2);
                    }
                }
                Method::Parked { contestants, .. } => {
                    for contestant in *contestants {
                        let parked = (contestant.run)(10);
                        assert_eq!(parked.reached, 10, "{}", contestant.runtime);
                        assert_eq!(parked.failure, None, "{}", contestant.runtime);
                    }
                }
            }
        }
    }
}
