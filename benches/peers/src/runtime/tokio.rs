//! tokio's current-thread scheduler. It has no `enter`: a pair is one `yield_now` of the only task, through the run
//! queue and back, and a task's life includes the spawn and the wait for its end.

use std::array;
use std::future;
use std::hint;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ::tokio::runtime::{Builder, Runtime};
use ::tokio::sync::Barrier;
use ::tokio::task::{self, JoinHandle};

use crate::body::five_calls;
use crate::loops::{self, BATCH, NESTED, THREAD_WARM_UP, WINDOW};
use crate::parked::{Filled, Parked};

/// The name in reports.
pub const NAME: &str = "tokio";

fn runtime() -> Runtime {
    Builder::new_current_thread().build().expect("a runtime without drivers can be built")
}

async fn join(task: JoinHandle<()>) {
    task.await.expect("the task does not panic");
}

/// Runs `work` on a runtime of its own, and times it there.
fn timed(work: impl Future<Output = ()>) -> Duration {
    runtime().block_on(async {
        let start = Instant::now();
        work.await;
        start.elapsed()
    })
}

/// A task that yields in a loop.
pub fn switch(times: u64) -> Duration {
    timed(join_new(async move {
        for _ in 0..times {
            task::yield_now().await;
        }
    }))
}

/// [`switch`], where the task yields within five futures.
pub fn switch_deep(times: u64) -> Duration {
    timed(join_new(async move {
        for _ in 0..times {
            five_calls(task::yield_now()).await;
        }
    }))
}

/// `N` tasks that yield in a loop.
pub fn round_robin<const N: usize>(times: u64) -> Duration {
    runtime().block_on(async {
        let started = Arc::new(Barrier::new(N + 1));
        let spawn = |_| {
            let started = Arc::clone(&started);
            task::spawn(async move {
                started.wait().await;
                for _ in 0..times {
                    task::yield_now().await;
                }
            })
        };
        let tasks: Vec<_> = (0..N).map(spawn).collect();
        started.wait().await;
        let start = Instant::now();
        for task in tasks {
            join(task).await;
        }
        start.elapsed()
    })
}

async fn join_new(work: impl Future<Output = ()> + Send + 'static) {
    join(task::spawn(work)).await;
}

/// An empty task: spawned, run, joined.
pub fn lifecycle(times: u64) -> Duration {
    timed(async {
        for _ in 0..times {
            join_new(async {}).await;
        }
    })
}

/// A task that yields once.
pub fn cost(times: u64) -> Duration {
    timed(async {
        for _ in 0..times {
            join_new(task::yield_now()).await;
        }
    })
}

/// [`BATCH`] tasks at once, each yielding within five futures.
pub fn deep_batch(times: u64) -> Duration {
    timed(async {
        for _ in 0..times {
            let tasks: [_; BATCH as usize] = array::from_fn(|_| task::spawn(five_calls(task::yield_now())));
            for task in tasks {
                join(task).await;
            }
        }
    })
}

/// [`NESTED`] tasks, each of which spawns and joins the next.
pub fn nesting(times: u64) -> Duration {
    fn nest(levels: u32) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            if let Some(levels) = levels.checked_sub(1) {
                join_new(nest(levels)).await;
            }
        })
    }
    timed(async {
        for _ in 0..times {
            nest(NESTED).await;
        }
    })
}

/// [`lifecycle`] on two threads with a runtime each.
pub fn two_threads(times: u64) -> Duration {
    loops::on_two_threads(lifecycle, times)
}

/// Empty tasks spawned by a thread outside the runtime, at most [`WINDOW`] ahead.
pub fn cross_thread(times: u64) -> Duration {
    /// How many tasks have ended. A static, so that the tasks need not count references to it.
    static ENDED: AtomicU64 = AtomicU64::new(0);

    async fn until_ended(count: u64) {
        while ENDED.load(Ordering::Relaxed) < count {
            task::yield_now().await;
        }
    }

    ENDED.store(0, Ordering::Relaxed);
    let total = THREAD_WARM_UP + times;
    let runtime = runtime();
    let remote = runtime.handle().clone();
    thread::scope(|scope| {
        scope.spawn(move || {
            for spawned in 0..total {
                while spawned - ENDED.load(Ordering::Relaxed) >= WINDOW as u64 {
                    hint::spin_loop();
                }
                remote.spawn(async {
                    ENDED.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        runtime.block_on(async {
            until_ended(THREAD_WARM_UP).await;
            let start = Instant::now();
            until_ended(total).await;
            start.elapsed()
        })
    })
}

/// `count` tasks that have run and wait for ever.
pub fn parked(count: usize) -> Parked {
    static STARTED: AtomicU64 = AtomicU64::new(0);

    STARTED.store(0, Ordering::Relaxed);
    Parked::measure(|| {
        let runtime = runtime();
        runtime.block_on(async {
            for _ in 0..count {
                task::spawn(async {
                    STARTED.fetch_add(1, Ordering::Relaxed);
                    future::pending::<()>().await;
                });
            }
            while STARTED.load(Ordering::Relaxed) < count as u64 {
                task::yield_now().await;
            }
        });
        mem::forget(runtime);
        Filled { reached: count, failure: None }
    })
}
