//! tokio's two schedulers, with its drivers for descriptors and time.

use std::future::poll_fn;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use ::tokio::io::unix::AsyncFd;
use ::tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use ::tokio::net;
use ::tokio::runtime::{Builder, Runtime};
use ::tokio::sync::oneshot;
use ::tokio::task;
use ::tokio::time;

use super::FAR;
use super::echo::{BUFFER, CONNECTIONS};
use super::event_fd::EventFd;
use super::rally::{Clock, Rally, Side, on_two_threads};
use super::tally::Tally;
use crate::measure::{self, Core, Pinned, cpu_time};

/// A scheduler.
pub trait Scheduler {
    /// The name in reports.
    const NAME: &'static str;

    fn builder() -> Builder;
}

/// Everything on the thread that asks for it.
pub struct CurrentThread;

impl Scheduler for CurrentThread {
    const NAME: &'static str = "tokio";

    fn builder() -> Builder {
        Builder::new_current_thread()
    }
}

/// Two worker threads.
pub struct MultiThread;

impl Scheduler for MultiThread {
    const NAME: &'static str = "tokio-mt";

    fn builder() -> Builder {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2);
        builder
    }
}

/// A runtime whose workers, if it has any, may run on all cores.
fn runtime<S: Scheduler>() -> Runtime {
    S::builder().on_thread_start(measure::unpin).enable_all().build().expect("a runtime can be had")
}

/// A runtime whose workers, if it has any, stay on the calling thread's core.
fn runtime_here<S: Scheduler>() -> Runtime {
    S::builder().enable_all().build().expect("a runtime can be had")
}

/// Runs `work` as a task.
fn run<T: Send + 'static>(runtime: &Runtime, work: impl Future<Output = T> + Send + 'static) -> T {
    runtime.block_on(runtime.spawn(work)).expect("it doesn't panic")
}

/// Runs `work` on a runtime of its own, and times it there.
fn timed<S: Scheduler>(work: impl Future<Output = ()> + Send + 'static) -> Duration {
    run(&runtime::<S>(), async {
        let start = Instant::now();
        work.await;
        start.elapsed()
    })
}

/// Empty tasks, each spawned by the one before.
pub fn bh(times: u64) -> Duration {
    fn spawn(left: u64, done: oneshot::Sender<()>) {
        task::spawn(async move {
            match left.checked_sub(1) {
                Some(left) => spawn(left, done),
                None => done.send(()).expect("somebody waits"),
            }
        });
    }
    timed::<CurrentThread>(async move {
        let (done, wait) = oneshot::channel();
        spawn(times, done);
        wait.await.expect("the last task says so");
    })
}

/// An empty task, spawned and joined by another.
pub fn spawn_join<S: Scheduler>(times: u64) -> Duration {
    timed::<S>(async move {
        for _ in 0..times {
            task::spawn(async {}).await.expect("it doesn't panic");
        }
    })
}

/// Empty tasks spawned by another thread.
pub fn spawn_remote<S: Scheduler>(times: u64) -> Duration {
    static TALLY: Tally = Tally::new();

    async fn until(is_done: impl Fn() -> bool) {
        poll_fn(|_| if is_done() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    let _pinned = Pinned::to(Core::Last);
    let runtime = runtime::<S>();
    let remote = runtime.handle().clone();
    runtime.block_on(async {
        poll_fn(|context| {
            TALLY.begin(times, context.waker().clone());
            Poll::Ready(())
        })
        .await;
        let producer = thread::spawn(move || TALLY.produce(|| drop(remote.spawn(async { TALLY.count() }))));
        until(|| TALLY.is_warm()).await;
        let start = Instant::now();
        until(|| TALLY.is_complete()).await;
        let elapsed = start.elapsed();
        producer.join().expect("the producer doesn't panic");
        elapsed
    })
}

/// Two tasks, each waiting for the other to make its descriptor readable.
pub fn fd_park<S: Scheduler>(times: u64) -> Duration {
    async fn wait(own: &EventFd, watch: &AsyncFd<BorrowedFd<'_>>) {
        let mut ready = watch.readable().await.expect("the runtime is running");
        own.take();
        // It isn't readable any more; finding that out by another read would cost more.
        ready.clear_ready();
    }

    let [ours, theirs] = [EventFd::new(), EventFd::new()].map(Arc::new);
    timed::<S>(async move {
        let (own, other) = (theirs.clone(), ours.clone());
        let answering = task::spawn(async move {
            let watch = watch(&own);
            for _ in 0..times {
                wait(&own, &watch).await;
                other.signal();
            }
        });
        let watch = watch(&ours);
        for _ in 0..times {
            theirs.signal();
            wait(&ours, &watch).await;
        }
        answering.await.expect("it doesn't panic");
    })
}

/// A task for each connection, which sends back what it gets.
pub fn serve_echo(listener: TcpListener) {
    async fn echo(mut stream: net::TcpStream) {
        let mut buffer = [0; BUFFER];
        loop {
            match stream.read(&mut buffer).await.expect("the client doesn't reset") {
                0 => return,
                count => stream.write_all(&buffer[..count]).await.expect("the client is there"),
            }
        }
    }

    run(&runtime::<CurrentThread>(), async move {
        listener.set_nonblocking(true).expect("a socket can be non-blocking");
        let listener = net::TcpListener::from_std(listener).expect("a socket can be watched");
        let mut echoes = Vec::new();
        for _ in 0..CONNECTIONS {
            let (stream, _) = listener.accept().await.expect("it is a connection");
            echoes.push(task::spawn(echo(stream)));
        }
        for echo in echoes {
            echo.await.expect("it doesn't panic");
        }
    });
}

/// Registers a descriptor for input.
fn watch(fd: &EventFd) -> AsyncFd<BorrowedFd<'_>> {
    // SAFETY: the descriptor stays open, and the same, while it is borrowed.
    let watch = unsafe { AsyncFd::register_with_interest(fd.as_fd(), Interest::READABLE) };
    watch.expect("an eventfd can be watched")
}

/// A round trip of wakes between tasks of two runtimes that sleep.
pub fn wake_sleeping<S: Scheduler>(times: u64) -> Duration {
    let rally = Arc::new(Rally::new(times));
    on_two_threads(
        || run(&runtime_here::<S>(), serve(rally.clone())),
        || run(&runtime_here::<S>(), answer(rally.clone())),
    )
}

/// [`wake_sleeping`], where a task that yields keeps each runtime from sleeping.
pub fn wake_busy(times: u64) -> Duration {
    let rally = Arc::new(Rally::new(times));
    on_two_threads(|| busily(&rally, serve(rally.clone())), || busily(&rally, answer(rally.clone())))
}

/// Runs a player on a runtime that never sleeps.
fn busily<T: Send + 'static>(rally: &Rally, player: impl Future<Output = T> + Send + 'static) -> T {
    runtime_here::<CurrentThread>().block_on(async {
        let player = task::spawn(player);
        while !rally.is_over() {
            task::yield_now().await;
        }
        player.await.expect("it doesn't panic")
    })
}

async fn serve(rally: Arc<Rally>) -> Duration {
    enter(&rally, Side::First).await;
    let mut clock = Clock::default();
    for round in rally.rounds() {
        clock.tick(round);
        rally.hit(Side::First, round.serve());
        wait_until_seen(&rally, round.answer()).await;
    }
    clock.elapsed()
}

async fn answer(rally: Arc<Rally>) {
    enter(&rally, Side::Second).await;
    for round in rally.rounds() {
        wait_until_seen(&rally, round.serve()).await;
        rally.hit(Side::Second, round.answer());
    }
}

async fn enter(rally: &Rally, side: Side) {
    poll_fn(|context| {
        rally.enter(side, context.waker().clone());
        Poll::Ready(())
    })
    .await;
}

async fn wait_until_seen(rally: &Rally, hit: u64) {
    poll_fn(|_| if rally.has_seen(hit) { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Watching `N` descriptors and unwatching them.
pub fn register<const N: u32>(times: u64) -> Duration {
    let fds = EventFd::silent(N);
    timed::<CurrentThread>(async move {
        for _ in 0..times {
            drop(fds.iter().map(watch).collect::<Vec<_>>());
            // The driver frees them when it has its turn.
            task::yield_now().await;
        }
    })
}

/// A yield, for which the loop looks for events, with `N` descriptors of which none is ready.
pub fn idle_turn<const N: u32>(times: u64) -> Duration {
    run(&runtime::<CurrentThread>(), async move {
        let fds = EventFd::silent(N);
        let _watches: Vec<_> = fds.iter().map(watch).collect();
        let start = Instant::now();
        for _ in 0..times {
            task::yield_now().await;
        }
        start.elapsed()
    })
}

/// A sleep that is begun and given up.
pub fn timer_cancel<S: Scheduler>(times: u64) -> Duration {
    timed::<S>(async move {
        for _ in 0..times {
            let mut sleep = pin!(time::sleep(FAR));
            poll_fn(|context| {
                assert!(sleep.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
    })
}

/// A sleep until now.
pub fn timer_fire<S: Scheduler>(times: u64) -> Duration {
    timed::<S>(async move {
        for _ in 0..times {
            time::sleep(Duration::ZERO).await;
        }
    })
}

/// The processor time of a runtime whose only task sleeps.
pub fn idle<S: Scheduler>(length: Duration) -> Duration {
    run(&runtime::<S>(), async move {
        // Its threads have started, and have found nothing to do.
        time::sleep(length / 10).await;
        let before = cpu_time();
        time::sleep(length).await;
        cpu_time() - before
    })
}
