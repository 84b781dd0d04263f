//! The group `coroutine`: what creating, entering, suspending and keeping a coroutine costs.

use super::{Case, Contestant, Cores, Group, Method, Shortfall};
use crate::loops;
use crate::measure::Loop;
use crate::parked;
use crate::runtime::{Aioco, AsyncBoxed, Corosensei, Fcontext, Generator, NaivePool, Runtime, tokio};

/// A table of contestants: the same generic function for each of the runtimes listed, then others by name.
///
/// `contestants!(R => loops::switch::<R>, [Corosensei, Generator], tokio => tokio::switch)`
macro_rules! contestants {
    ($alias:ident => $run:expr, [$($runtime:ident),* $(,)?] $(, $module:ident => $other:expr)?) => {
        &[
            $({
                type $alias = $runtime;
                Contestant { runtime: $alias::NAME, run: $run }
            },)*
            $(Contestant { runtime: $module::NAME, run: $other },)?
        ]
    };
}

/// A loop on one core, each time around it counting for so many units.
const fn on_one_core(units: u32, contestants: &'static [Contestant<Loop>]) -> Method {
    Method::Timed { cores: Cores::One, units, descriptors: 0, contestants }
}

/// A loop on two cores.
const fn on_two_cores(contestants: &'static [Contestant<Loop>]) -> Method {
    Method::Timed { cores: Cores::Two, units: 1, descriptors: 0, contestants }
}

pub const GROUP: Group = Group {
    name: "coroutine",
    about: "creating, entering, suspending and keeping coroutines",
    baseline: Corosensei::NAME,
    probes: &[],
    cases: &[
        Case {
            name: "call",
            about: "a call of an empty function through a pointer, for reference",
            method: on_one_core(1, &[Contestant { runtime: "function", run: loops::call }]),
        },
        Case {
            name: "switch",
            about: "enter a coroutine that suspends in a loop",
            method: on_one_core(
                1,
                contestants!(
                    R => loops::switch::<R>,
                    [Aioco, Corosensei, Generator, Fcontext, AsyncBoxed],
                    tokio => tokio::switch
                ),
            ),
        },
        Case {
            name: "switch-deep5",
            about: "the same, suspending five calls down and returning from them",
            method: on_one_core(
                1,
                contestants!(
                    R => loops::switch_deep::<R>,
                    [Aioco, Corosensei, Generator, Fcontext, AsyncBoxed],
                    tokio => tokio::switch_deep
                ),
            ),
        },
        Case {
            name: "lifecycle",
            about: "create, enter, end",
            method: on_one_core(
                1,
                contestants!(
                    R => loops::lifecycle::<R>,
                    [Aioco, Corosensei, NaivePool, Generator, Fcontext, AsyncBoxed],
                    tokio => tokio::lifecycle
                ),
            ),
        },
        Case {
            // Without aioco: it never maps a stack for one coroutine. Its cold cost is `parked-1m-create`.
            name: "new-stack",
            about: "create, enter, end, each on a newly mapped stack",
            method: on_one_core(
                1,
                contestants!(
                    R => loops::new_stack::<R>,
                    [Corosensei, Generator, Fcontext]
                ),
            ),
        },
        Case {
            name: "cost",
            about: "create, enter, suspend, enter, end",
            method: on_one_core(
                1,
                contestants!(
                    R => loops::cost::<R>,
                    [Aioco, Corosensei, NaivePool, Generator, Fcontext, AsyncBoxed],
                    tokio => tokio::cost
                ),
            ),
        },
        Case {
            name: "cost-behind-call",
            about: "the same, entered by a function that isn't inlined, whose return the CPU predicts wrongly",
            method: on_one_core(
                1,
                contestants!(
                    R => loops::cost_behind_call::<R>,
                    [Aioco, Corosensei, NaivePool, Generator, Fcontext, AsyncBoxed]
                ),
            ),
        },
        Case {
            name: "cost-deep5-qd8",
            about: "the same for eight coroutines in turn, suspending five calls down, per coroutine",
            method: on_one_core(
                loops::BATCH,
                contestants!(
                    R => loops::deep_batch::<R>,
                    [Aioco, Corosensei, NaivePool, Generator, Fcontext, AsyncBoxed],
                    tokio => tokio::deep_batch
                ),
            ),
        },
        Case {
            name: "nesting-1000",
            about: "a thousand coroutines, each creating and entering the next, per coroutine",
            method: on_one_core(
                loops::NESTED,
                contestants!(
                    R => loops::nesting::<R>,
                    [Aioco, Corosensei, NaivePool, Generator, Fcontext, AsyncBoxed],
                    tokio => tokio::nesting
                ),
            ),
        },
        Case {
            name: "round-robin-64",
            about: "enter 64 suspended coroutines in turn, per pair of switches",
            method: on_one_core(
                64,
                contestants!(
                    R => loops::round_robin::<R, 64>,
                    [Aioco, Corosensei, Generator, Fcontext, AsyncBoxed],
                    tokio => tokio::round_robin::<64>
                ),
            ),
        },
        Case {
            name: "round-robin-1024",
            about: "enter 1024 suspended coroutines in turn, per pair of switches",
            method: on_one_core(
                1024,
                contestants!(
                    R => loops::round_robin::<R, 1024>,
                    [Aioco, Corosensei, Generator, Fcontext, AsyncBoxed],
                    tokio => tokio::round_robin::<1024>
                ),
            ),
        },
        Case {
            name: "xthread",
            about: "one thread creates, another enters and ends, at most 64 behind",
            method: on_two_cores(contestants!(
                R => loops::cross_thread::<R>,
                [Aioco, Corosensei, NaivePool, Generator, Fcontext, AsyncBoxed],
                tokio => tokio::cross_thread
            )),
        },
        Case {
            name: "pool-2-threads",
            about: "create, enter, end on two threads at once, per coroutine of one thread",
            method: on_two_cores(contestants!(
                R => loops::two_threads::<R>,
                [Aioco, Corosensei, NaivePool, Generator, Fcontext, AsyncBoxed],
                tokio => tokio::two_threads
            )),
        },
        Case {
            name: "parked-100k",
            about: "100 000 coroutines created, entered to a suspension and kept",
            method: Method::Parked {
                count: 100_000,
                shortfall: Shortfall::Report,
                contestants: contestants!(
                    R => parked::park::<R>,
                    [Aioco, Corosensei, Generator, Fcontext, AsyncBoxed],
                    tokio => tokio::parked
                ),
            },
        },
        Case {
            name: "parked-1m",
            about: "1 000 000 coroutines created, entered to a suspension and kept",
            method: Method::Parked {
                count: 1_000_000,
                shortfall: Shortfall::LeaveOut,
                contestants: contestants!(
                    R => parked::park::<R>,
                    [Aioco, Corosensei, Generator, Fcontext, AsyncBoxed],
                    tokio => tokio::parked
                ),
            },
        },
    ],
};
