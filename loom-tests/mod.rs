//! Models of the lock-free protocols, checked by [loom](https://docs.rs/loom).
//!
//! `ci/loom.sh` runs them. `src/lib.rs` mounts this folder into the crate's test build, so that the models see what is
//! private; in such a build `primitive` is loom's, and only the rooms that carry a protocol are compiled.
//!
//! # What is checked
//!
//! | model | of | what holds |
//! |---|---|---|
//! | [`push_stack`] | `lockfree::PushStack` | no node is lost or comes out twice; each pusher's order; contents are visible |
//! | [`pool`] | `pool::{Release, Local}` | each object has one owner and none is lost, also when it is reused during another's take; the count never wraps |
//! | [`state`] | `coroutine::state::State` | no wake or cancel is lost, though the coroutine is entered by hand or its queue is dropped; a stale waker changes nothing; a block is freed once, and not under a queue |
//! | [`wake_queue`] | `State` and `PushStack` together | a coroutine that parks in a loop until its conditions hold gets through; it stands in the queue once at a time |
//! | [`bottom_half`] | `aio::bh_state::BhState` and `PushStack` | each schedule leads to a run that sees what came before it, and wakes a loop that sleeps over a cancelled one; it is queued once at a time |
//! | [`oneshot`] | `task::oneshot` | one value is received once, or dropped; a receiver that waits is woken and finds it; the last end frees what they share |
//! | [`request`] | `aio::request_state` | whoever sees a result sees what was read, and has the request to itself; no completion of several is missed |
//! | [`notify`] | `aio::notify::Notify` | a loop never sleeps on work; a loop that ends leaves none behind |
//! | [`short_lock`] | `primitive::ShortLock` | holders exclude one another, and see what the ones before did |
//! | [`mutex`], [`rwlock`], [`semaphore`] | `sync::raw::gate::Gate` and its rules | nobody is in who may not be, nobody waits who could be in; also when waiters give up or are unwound |
//! | [`wait_queue`] | `sync::raw::wait_queue` | no wake is missed; one wakes one; it is handed on |
//! | [`event`] | `sync::raw::event` | all who wait are told, not too early, and see what came before |
//! | [`barrier`] | `sync::raw::barrier` | nobody goes before all have come, one of them came last; one that leaves hasn't come |
//! | [`task_group`] | `sync::raw::task_group` | a parent goes when all have ended; no more run than may; an unwound spawner leaves nothing |
//! | [`threshold`] | `sync::raw::threshold` | no advance is missed, and what came before it is visible |
//! | [`channel`] | `sync::raw::channel` | each message arrives once and in order, or is given back; all are told of the end |
//! | [`pending`] | `sync::raw::pending` | so it is for async code; the latest waker is woken; a future that is dropped hands on what it was given |
//!
//! Each is true of every execution with up to three threads (and the one that starts them), each of which does a few
//! steps, and with as many preemptions as `ci/loom.sh` allows. The memory model is C11's, stale values included, as
//! loom implements it.
//!
//! # What loom can't tell
//!
//! - It doesn't explore load buffering: executions in which a load sees a store that its own thread's later store made
//!   possible. Nothing here loads on one side what it stores on the other without a fence or a release in between.
//! - It takes `SeqCst` *accesses* for acquire and release only; fences it knows. So the handshakes are written with
//!   fences.
//! - It misses some interleavings of loops around a compare-exchange: see [`race`], which makes up for it.
//! - It shows some executions that no machine has: see `primitive::Overwrite`.
//! - A compare-exchange never fails spuriously. All of ours are in loops that try again.
//! - More threads, longer histories, compilers, the stack switch and the kernel: that is for the tests in `tests/`, the
//!   soak on real (and weakly ordered) machines among them.
//!
//! # Planted faults
//!
//! A model that nothing can fail proves nothing. So the protocols have faults planted (`primitive::mutant`), a fence or
//! a re-check left out or an ordering weakened, and with each of them armed a model that lists it must fail. That also
//! tells which orderings are surplus: none of those that have a fault planted.

/// For each model, a test that it holds, and a test for each listed fault that it catches it. One that has more executions
/// than anybody waits for is preempted less often than the others.
macro_rules! models {
    ($($model:ident $(preempted $less:literal less)? catches $($fault:ident),+;)+) => {
        $(
            mod $model {
                const LESS: usize = 0 $(+ $less)?;

                #[test]
                fn holds() {
                    crate::loom_tests::holds(LESS, super::$model);
                }
                $(
                    #[test]
                    fn $fault() {
                        crate::loom_tests::catches(stringify!($fault), LESS, super::$model);
                    }
                )+
            }
        )+
    };
}

mod barrier;
mod bottom_half;
mod channel;
mod coroutine;
mod event;
mod mutex;
mod notify;
mod oneshot;
mod pending;
mod pool;
mod push_stack;
mod race;
mod request;
mod rwlock;
mod semaphore;
mod short_lock;
mod state;
mod task_group;
mod threshold;
mod wait_queue;
mod wake_queue;

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, panic};

use loom::model::Builder;

use crate::primitive::mutant;

fn holds(less: usize, model: fn()) {
    race::in_each_order(|| {
        let mut builder = Builder::new();
        builder.preemption_bound = builder.preemption_bound.map(|most| most.saturating_sub(less));
        builder.check(model);
    });
}

fn catches(fault: &'static str, less: usize, model: fn()) {
    let outcome = mutant::with(fault, || panic::catch_unwind(|| holds(less, model)));
    assert!(outcome.is_err(), "the model holds in spite of the fault `{fault}`");
}

/// A fault that is planted and that no model catches would look like proof.
#[test]
fn each_planted_fault_is_caught() {
    let planted = words_of("src", |text| {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        code.flat_map(|line| {
            let quoted = line.split('"').skip(1).step_by(2);
            quoted.filter(|_| line.contains("mutant!(\"") || line.contains("ordering!("))
        })
        .map(str::to_owned)
        .collect()
    });
    let caught = words_of("loom-tests", |text| {
        let lists = text.split(" catches").skip(1).filter_map(|rest| rest.split_once(';'));
        lists.flat_map(|(list, _)| list.split(',')).map(|fault| fault.trim().to_owned()).collect()
    });
    assert!(!planted.is_empty());
    let missed: Vec<_> = planted.difference(&caught).collect();
    assert!(missed.is_empty(), "planted, but caught by no model: {missed:?}");
}

/// What `find` finds in the Rust files of a folder of the crate.
fn words_of(folder: &str, find: impl Fn(&str) -> BTreeSet<String>) -> BTreeSet<String> {
    fn visit(folder: &Path, each: &mut impl FnMut(&str)) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, each);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                each(&fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut found = BTreeSet::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut |text| found.extend(find(text)));
    found
}
