//! The group `loop`: what an event loop takes to be woken, to run what is scheduled, to watch descriptors and the
//! clock.

use super::{Case, Contestant, Cores, Group, Method};
use crate::event_loop::echo::CONNECTIONS;
use crate::event_loop::poller::{self, Poller};
use crate::event_loop::tokio::{self, CurrentThread, MultiThread, Scheduler};
use crate::event_loop::{IDLE, MANY, Mio, RawEpoll, RawRing, aioco, echo, raw_epoll, raw_ring};
use crate::measure::Loop;
use crate::runtime::{Aioco, Runtime};

/// A table of contestants: on each line a loop, generic or not, for each of the types listed.
///
/// `contestants!(A in [Aioco] => aioco::fd_park, P in [Mio, RawEpoll] => poller::fd_park::<P>)`
macro_rules! contestants {
    ($($alias:ident in [$($runtime:ident),* $(,)?] => $run:expr),* $(,)?) => {
        &[$($({
            type $alias = $runtime;
            Contestant { runtime: $alias::NAME, run: $run }
        },)*)*]
    };
}

/// A loop on one core that does one thing each time.
const fn on_one_core(contestants: &'static [Contestant<Loop>]) -> Method {
    Method::Timed { cores: Cores::One, units: 1, descriptors: 0, contestants }
}

/// A loop on two cores that does one thing each time.
const fn on_two_cores(contestants: &'static [Contestant<Loop>]) -> Method {
    Method::Timed { cores: Cores::Two, units: 1, descriptors: 0, contestants }
}

/// A server on one core and its clients on another, per message. Both have the ends of the connections open.
const fn served(contestants: &'static [Contestant<Loop>]) -> Method {
    Method::Timed { cores: Cores::Two, units: CONNECTIONS, descriptors: 2 * CONNECTIONS, contestants }
}

const WAKE_SLEEPING: &[Contestant<Loop>] = contestants!(
    A in [Aioco] => aioco::wake_sleeping,
    S in [CurrentThread, MultiThread] => tokio::wake_sleeping::<S>,
    P in [Mio, RawEpoll, RawRing] => poller::wake_sleeping::<P>,
);

pub const GROUP: Group = Group {
    name: "loop",
    about: "waking an event loop, spawning on it, watching descriptors and the clock; workers of tokio-mt, except in \
            wake-sleeping, run on any core",
    baseline: CurrentThread::NAME,
    probes: &[Contestant { runtime: RawRing::NAME, run: raw_ring::probe }],
    cases: &[
        Case {
            name: "wake-sleeping",
            about: "round trip between two loops that sleep, on a core each: a coroutine wakes one on the other \
                    thread, which wakes it; mio, raw: signal an eventfd, which is left readable",
            method: on_two_cores(WAKE_SLEEPING),
        },
        Case {
            name: "wake-sleeping-1-core",
            about: "the same on one core, so that no core has to be woken up",
            method: on_one_core(WAKE_SLEEPING),
        },
        Case {
            name: "wake-polling",
            about: "the same as wake-sleeping, where aioco's loops may poll for up to 32 us before they sleep",
            method: on_two_cores(contestants!(
                A in [Aioco] => aioco::wake_polling,
                S in [CurrentThread, MultiThread] => tokio::wake_sleeping::<S>,
            )),
        },
        Case {
            // Without tokio-mt, whose workers sleep whatever the others do.
            name: "wake-busy",
            about: "a round trip as in wake-sleeping, between loops that look for work without sleeping: poll(false); \
                    tokio: another task of each loop yields",
            method: on_two_cores(contestants!(
                A in [Aioco] => aioco::wake_busy,
                T in [CurrentThread] => tokio::wake_busy,
                P in [Mio, RawEpoll, RawRing] => poller::wake_busy::<P>,
            )),
        },
        Case {
            name: "bh",
            about: "from scheduling a bottom half to its run, where it schedules itself; tokio: empty tasks, each \
                    spawned by the one before",
            method: on_one_core(contestants!(A in [Aioco] => aioco::bh, T in [CurrentThread] => tokio::bh)),
        },
        Case {
            name: "bh-once",
            about: "the same for closures that run once, allocated each time",
            method: on_one_core(contestants!(A in [Aioco] => aioco::bh_once, T in [CurrentThread] => tokio::bh)),
        },
        Case {
            name: "spawn-join",
            about: "a coroutine spawns an empty one on its own loop and joins it",
            method: on_one_core(contestants!(
                A in [Aioco] => aioco::spawn_join,
                S in [CurrentThread, MultiThread] => tokio::spawn_join::<S>,
            )),
        },
        Case {
            name: "spawn-remote",
            about: "a thread spawns empty coroutines on the loop of another, at most 64 ahead, and joins none; on a \
                    core each (tokio-mt: its workers on any), per coroutine",
            method: on_two_cores(contestants!(
                A in [Aioco] => aioco::spawn_remote,
                S in [CurrentThread, MultiThread] => tokio::spawn_remote::<S>,
            )),
        },
        Case {
            name: "fd-park",
            about: "write an eventfd, have the loop of the same thread wake the coroutine that waits for it, read it; \
                    two coroutines in turn, per wait; mio, raw: write, wait, read",
            method: Method::Timed {
                cores: Cores::One,
                units: 2,
                descriptors: 0,
                contestants: contestants!(
                    A in [Aioco] => aioco::fd_park,
                    S in [CurrentThread, MultiThread] => tokio::fd_park::<S>,
                    P in [Mio, RawEpoll, RawRing] => poller::fd_park::<P>,
                ),
            },
        },
        Case {
            name: "tcp-echo-64",
            about: "a server sends back messages of 64 bytes, with a coroutine for each of 64 connections; the clients \
                    are a thread with epoll, on another core; per message; mio: no coroutine",
            method: served(contestants!(
                A in [Aioco] => |times| echo::run(times, aioco::serve_echo).elapsed,
                T in [CurrentThread] => |times| echo::run(times, tokio::serve_echo).elapsed,
                P in [Mio] => |times| echo::run(times, echo::serve_by_mio).elapsed,
            )),
        },
        Case {
            name: "tcp-echo-64-cpu",
            about: "the processor time of the server's thread for that",
            method: served(contestants!(
                A in [Aioco] => |times| echo::run(times, aioco::serve_echo).cpu,
                T in [CurrentThread] => |times| echo::run(times, tokio::serve_echo).cpu,
                P in [Mio] => |times| echo::run(times, echo::serve_by_mio).cpu,
            )),
        },
        Case {
            name: "register-10k",
            about: "watch 10 000 eventfds for input, then unwatch them, and a turn; per descriptor; aioco: one \
                    transaction each; raw-ring: 64 to a system call",
            method: Method::Timed {
                cores: Cores::One,
                units: MANY,
                descriptors: MANY,
                contestants: contestants!(
                    A in [Aioco] => aioco::register::<MANY>,
                    T in [CurrentThread] => tokio::register::<MANY>,
                    P in [Mio, RawEpoll, RawRing] => poller::register::<P, MANY>,
                ),
            },
        },
        Case {
            name: "turn-10-idle",
            about: "a turn that doesn't wait, of a loop with 10 descriptors of which none is ready; tokio: a yield of \
                    its only task; raw-ring: no system call",
            method: Method::Timed {
                cores: Cores::One,
                units: 1,
                descriptors: 10,
                contestants: contestants!(
                    A in [Aioco] => aioco::idle_turn::<10>,
                    T in [CurrentThread] => tokio::idle_turn::<10>,
                    P in [Mio, RawEpoll, RawRing] => poller::idle_turn::<P, 10>,
                ),
            },
        },
        Case {
            name: "turn-10k-idle",
            about: "the same with 10 000 descriptors",
            method: Method::Timed {
                cores: Cores::One,
                units: 1,
                descriptors: MANY,
                contestants: contestants!(
                    A in [Aioco] => aioco::idle_turn::<MANY>,
                    T in [CurrentThread] => tokio::idle_turn::<MANY>,
                    P in [Mio, RawEpoll, RawRing] => poller::idle_turn::<P, MANY>,
                ),
            },
        },
        Case {
            name: "timer-cancel",
            about: "read the clock, arm a timer for an hour later, cancel it; raw-epoll: set a timerfd, twice; \
                    raw-ring: two requests",
            method: on_one_core(contestants!(
                A in [Aioco] => aioco::timer_cancel,
                S in [CurrentThread, MultiThread] => tokio::timer_cancel::<S>,
                P in [RawEpoll] => raw_epoll::timer_cancel,
                P in [RawRing] => raw_ring::timer_cancel,
            )),
        },
        Case {
            name: "timer-fire",
            about: "a coroutine arms a timer for now, and is woken by it; tokio rounds up to milliseconds; raw: a \
                    timerfd, a timeout, in a nanosecond",
            method: on_one_core(contestants!(
                A in [Aioco] => aioco::timer_fire,
                S in [CurrentThread, MultiThread] => tokio::timer_fire::<S>,
                P in [RawEpoll] => raw_epoll::timer_fire,
                P in [RawRing] => raw_ring::timer_fire,
            )),
        },
        Case {
            name: "idle-cpu",
            about: "the processor time of all threads in 200 ms that end with a timer, or a timeout, and have nothing \
                    else to do",
            method: Method::Idle {
                length: IDLE,
                contestants: contestants!(
                    A in [Aioco] => aioco::idle,
                    S in [CurrentThread, MultiThread] => tokio::idle::<S>,
                    P in [Mio, RawEpoll, RawRing] => poller::idle::<P>,
                ),
            },
        },
    ],
};
