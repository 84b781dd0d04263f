//! The group `locks`: what mutexes, semaphores and channels take, free and contended.

use super::{Case, Contestant, Cores, Group, Method};
use crate::event_loop::tokio::{CurrentThread, MultiThread};
use crate::locks::tasks::{AsyncLock, Tokio};
use crate::locks::{AT_A_TIME, COROUTINES, PAIRS, aioco, tasks};
use crate::measure::Loop;

/// The names in reports.
const AIOCO: &str = "aioco";
const PARKING_LOT: &str = "parking_lot";
const TOKIO: &str = "tokio";
const TOKIO_MT: &str = "tokio-mt";
const ASYNC_LOCK: &str = "async-lock";
const AIOCO_ASYNC: &str = "aioco-async";
const AIOCO_EACH: &str = "aioco-each";
const TOKIO_EACH: &str = "tokio-each";

/// A table of contestants, each with its name.
macro_rules! contestants {
    ($($name:ident => $run:expr),* $(,)?) => {
        &[$(Contestant { runtime: $name, run: $run }),*]
    };
}

/// A loop on one core, each time around it counting for so many units.
const fn on_one_core(units: u64, contestants: &'static [Contestant<Loop>]) -> Method {
    Method::Timed { cores: Cores::One, units: units as u32, descriptors: 0, contestants }
}

/// A loop on two cores.
const fn on_two_cores(contestants: &'static [Contestant<Loop>]) -> Method {
    Method::Timed { cores: Cores::Two, units: 1, descriptors: 0, contestants }
}

pub const GROUP: Group = Group {
    name: "locks",
    about: "locks and channels between coroutines; async-lock, async-channel and aioco-async: in tokio's tasks",
    baseline: TOKIO,
    probes: &[],
    cases: &[
        Case {
            name: "mutex-uncontended",
            about: "lock a free mutex in a coroutine, and unlock it",
            method: on_one_core(
                1,
                contestants!(
                    AIOCO => aioco::mutex_uncontended::<::aioco::sync::Mutex<u64>>,
                    PARKING_LOT => aioco::mutex_uncontended::<parking_lot::Mutex<u64>>,
                    TOKIO => tasks::mutex_uncontended::<Tokio>,
                    ASYNC_LOCK => tasks::mutex_uncontended::<AsyncLock>,
                ),
            ),
        },
        Case {
            name: "mutex-64",
            about: "64 coroutines of one loop that lock the same mutex and yield once with the lock held; per lock",
            method: on_one_core(
                COROUTINES,
                contestants!(
                    AIOCO => aioco::mutex_64,
                    TOKIO => tasks::mutex_64::<Tokio, CurrentThread>,
                    ASYNC_LOCK => tasks::mutex_64::<AsyncLock, CurrentThread>,
                ),
            ),
        },
        Case {
            name: "mutex-2-threads",
            about: "a coroutine on each of two threads: lock the same mutex, count, unlock; per lock; parking_lot: in \
                    aioco's coroutines; async-lock: on tokio-mt",
            method: on_two_cores(contestants!(
                AIOCO => aioco::mutex_2_threads::<::aioco::sync::Mutex<u64>>,
                PARKING_LOT => aioco::mutex_2_threads::<parking_lot::Mutex<u64>>,
                TOKIO_MT => tasks::mutex_2_threads::<Tokio, MultiThread>,
                ASYNC_LOCK => tasks::mutex_2_threads::<AsyncLock, MultiThread>,
            )),
        },
        Case {
            name: "semaphore",
            about: "64 coroutines of one loop that take one of 8 permits and yield once with it; per permit",
            method: on_one_core(
                COROUTINES,
                contestants!(
                    AIOCO => aioco::semaphore,
                    TOKIO => tasks::semaphore::<Tokio>,
                    ASYNC_LOCK => tasks::semaphore::<AsyncLock>,
                ),
            ),
        },
        Case {
            name: "channel-spsc",
            about: "a coroutine sends, another one of the same loop receives; room for 64; per message",
            method: on_one_core(
                1,
                contestants!(
                    AIOCO => aioco::channel_spsc,
                    AIOCO_ASYNC => tasks::channel_spsc::<tasks::Aioco>,
                    TOKIO => tasks::channel_spsc::<Tokio>,
                    ASYNC_LOCK => tasks::channel_spsc::<AsyncLock>,
                ),
            ),
        },
        Case {
            name: "channel-mpmc",
            about: "four of each; tokio: the receivers share one by a mutex",
            method: on_one_core(
                PAIRS,
                contestants!(
                    AIOCO => aioco::channel_mpmc,
                    AIOCO_ASYNC => tasks::channel_mpmc::<tasks::Aioco>,
                    TOKIO => tasks::channel_mpmc::<Tokio>,
                    ASYNC_LOCK => tasks::channel_mpmc::<AsyncLock>,
                ),
            ),
        },
        Case {
            name: "channel-2-threads",
            about: "as channel-spsc, on two threads; async-channel and aioco-async: on tokio-mt",
            method: on_two_cores(contestants!(
                AIOCO => aioco::channel_2_threads,
                AIOCO_ASYNC => tasks::channel_2_threads::<tasks::Aioco, MultiThread>,
                TOKIO_MT => tasks::channel_2_threads::<Tokio, MultiThread>,
                ASYNC_LOCK => tasks::channel_2_threads::<AsyncLock, MultiThread>,
            )),
        },
        Case {
            name: "threshold",
            about: "512 outstanding, completed one a turn, and a coroutine that waits for 128 at a time; per completion; \
                    -each: it is woken for each; tokio: it waits for 128 permits of a semaphore",
            method: on_one_core(
                AT_A_TIME,
                contestants!(
                    AIOCO => aioco::threshold,
                    AIOCO_EACH => aioco::wake_each,
                    TOKIO => tasks::threshold,
                    TOKIO_EACH => tasks::wake_each,
                ),
            ),
        },
    ],
};
