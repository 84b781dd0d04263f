//! Coroutines and async code: futures in coroutines, coroutines in futures.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::future::{self, poll_fn};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use aioco::aio::IoThread;
use aioco::coroutine::Cancelled;
use aioco::sync::{Receiver, RecvError, SendError, Sender, channel};
use aioco::{aio, park, task, yield_now};
use common::{
    Count, Guard, LIMIT, OnDrop, assert_cancelled, context, coroutine, each, message_of, scaled, settle, spawn, within,
};
use tokio::runtime::{self, Runtime};
use tokio::sync::oneshot;

// ---- what the tests are made of -------------------------------------------------------------------------------------

/// An executor of a few lines, whose threads share a queue: so a task moves from thread to thread.
#[derive(Default)]
struct Executor {
    ready: Mutex<Vec<Arc<Task>>>,
    changed: Condvar,
    unfinished: AtomicUsize,
}

struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    executor: Arc<Executor>,
}

impl Executor {
    fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        Arc::new(Task { future: Mutex::new(Some(Box::pin(future))), executor: self.clone() }).wake();
    }

    /// Runs all tasks to their ends, on this many threads.
    fn run(self: &Arc<Self>, threads: usize) {
        thread::scope(|scope| {
            let run = || while self.run_one() {};
            (0..threads).for_each(|_| _ = scope.spawn(run));
        });
    }

    fn run_one(&self) -> bool {
        let mut ready = self.ready.lock().unwrap();
        let task = loop {
            match ready.pop() {
                Some(task) => break task,
                None if self.unfinished.load(Ordering::Relaxed) == 0 => return false,
                None => ready = self.changed.wait(ready).unwrap(),
            }
        };
        drop(ready);
        let mut place = task.future.lock().unwrap();
        if let Some(future) = &mut *place {
            let waker = Waker::from(task.clone());
            if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                *place = None;
                let _ready = self.ready.lock().unwrap();
                self.unfinished.fetch_sub(1, Ordering::Relaxed);
                self.changed.notify_all();
            }
        }
        true
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.executor.ready.lock().unwrap().push(self.clone());
        self.executor.changed.notify_one();
    }
}

/// Runs a future by each executor there is.
fn on_each_executor<F: Future<Output = ()> + Send + 'static>(future: impl Fn() -> F + Send + 'static) {
    within(LIMIT, move || {
        current_thread().block_on(future());
        let runtime = multi_thread();
        runtime.block_on(async { runtime.spawn(future()).await.expect("no panic") });
        let executor = Arc::new(Executor::default());
        executor.spawn(future());
        executor.run(2);
        task::block_on(future());
    });
}

fn current_thread() -> Runtime {
    runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

fn multi_thread() -> Runtime {
    runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime")
}

fn io_thread() -> IoThread {
    IoThread::new("io").expect("a thread")
}

/// A waker that counts its wakes.
#[derive(Default)]
struct Wakes(AtomicU32);

impl Wakes {
    fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Polls a future once.
fn poll_once<F: Future + Unpin>(future: &mut F, wakes: &Arc<Wakes>) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&wakes.clone().into()))
}

/// A future that is pending until it is polled for the `n`th time.
fn ready_at(n: u32, polls: Rc<Cell<u32>>) -> impl Future<Output = ()> {
    poll_fn(move |_| {
        polls.set(polls.get() + 1);
        if polls.get() < n { Poll::Pending } else { Poll::Ready(()) }
    })
}

/// Counts the allocations of one thread at a time.
struct Counting;

static COUNTED_THREAD: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn this_thread() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() as usize }
}

// SAFETY: passed on to the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTED_THREAD.load(Ordering::Relaxed) == this_thread() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: contract.
        unsafe { System.dealloc(place, layout) }
    }
}

fn allocations_of(f: impl FnOnce()) -> usize {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap();
    ALLOCATIONS.store(0, Ordering::Relaxed);
    COUNTED_THREAD.store(this_thread(), Ordering::Relaxed);
    f();
    COUNTED_THREAD.store(0, Ordering::Relaxed);
    ALLOCATIONS.load(Ordering::Relaxed)
}

// ---- futures in coroutines ------------------------------------------------------------------------------------------

#[test]
fn a_coroutine_that_waits_for_a_future_lets_the_others_run() {
    each(|context| {
        let (sender, receiver) = oneshot::channel();
        let waiting = spawn(context, move || task::block_on(receiver));
        settle(context);
        assert!(!waiting.is_finished());
        let sending = spawn(context, move || sender.send(7));
        assert_eq!(waiting.join().expect("no panic"), Ok(7));
        assert_eq!(sending.join().expect("no panic"), Ok(()));
    });
}

#[test]
fn a_coroutine_waits_for_what_a_runtime_sends() {
    within(LIMIT, || {
        for runtime in [current_thread(), multi_thread()] {
            let io_thread = io_thread();
            for n in 0..scaled(400) {
                let (question, asked) = oneshot::channel();
                let (answer, answered) = oneshot::channel();
                let handle = io_thread.remote().spawn(move || {
                    question.send(n).expect("somebody asks");
                    task::block_on(answered).expect("an answer")
                });
                let doubled = runtime.block_on(async {
                    answer.send(2 * asked.await.expect("a question")).expect("somebody waits");
                    handle.expect("a stack").await.expect("no panic")
                });
                assert_eq!(doubled, 2 * n);
            }
        }
    });
}

#[test]
fn a_wake_polls_again_whether_or_not_it_was_meant() {
    let context = context();
    let polls = Rc::new(Cell::new(0));
    let waker = Rc::new(Cell::new(None));
    let waiting = {
        let (polls, waker) = (polls.clone(), waker.clone());
        context.spawn_local(move || {
            waker.set(Some(park::waker()));
            task::block_on(ready_at(3, polls));
        })
    };
    let waiting = waiting.expect("a stack");
    settle(&context);
    let waker = waker.take().expect("it waits");
    for n in 1..3 {
        assert_eq!(polls.get(), n);
        settle(&context);
        assert_eq!(polls.get(), n, "it was polled for no reason");
        waker.wake_by_ref();
        settle(&context);
    }
    assert!(waiting.is_finished());
}

/// A park inside of the poll has the wake that was for the future.
#[test]
fn a_wake_that_comes_while_the_poll_itself_parks_is_not_lost() {
    fn parks_in_its_poll() -> impl Future<Output = u32> {
        let mut polls = 0;
        poll_fn(move |context| {
            polls += 1;
            if polls == 2 {
                return Poll::Ready(polls);
            }
            context.waker().wake_by_ref();
            park::park();
            Poll::Pending
        })
    }
    let nested = || {
        let inner = poll_fn(|_| Poll::Ready(task::block_on(parks_in_its_poll())));
        (task::block_on(parks_in_its_poll()), task::block_on(inner))
    };

    within(LIMIT, move || {
        assert_eq!(nested(), (2, 2));
        let context = context();
        assert_eq!(context.block_on(nested), (2, 2));

        // The inner one, which parks, must not hide that from the outer one.
        let polls = Cell::new(0);
        let outer = poll_fn(|context| {
            polls.set(polls.get() + 1);
            if polls.get() == 2 {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            task::block_on(parks_in_its_poll());
            Poll::Pending
        });
        context.block_on(|| task::block_on(outer));
    });
}

#[test]
fn a_future_that_waits_for_another_in_its_poll_is_not_polled_for_that() {
    let context = context();
    let polls = Rc::new(Cell::new(0));
    let waker = Rc::new(Cell::new(None));
    let outer = {
        let (polls, waker) = (polls.clone(), waker.clone());
        poll_fn(move |context| {
            task::block_on(async {});
            polls.set(polls.get() + 1);
            waker.set(Some(context.waker().clone()));
            if polls.get() < 2 { Poll::Pending } else { Poll::Ready(()) }
        })
    };
    let waiting = context.spawn_local(move || task::block_on(outer)).expect("a stack");
    settle(&context);
    assert_eq!(polls.get(), 1);
    waker.take().expect("polled").wake();
    settle(&context);
    waiting.join().expect("no panic");
}

#[test]
fn a_callback_that_waits_for_a_future_runs_its_loop() {
    each(|context| {
        let result = Rc::new(Cell::new(None));
        let place = result.clone();
        let (sender, receiver) = oneshot::channel();
        let io_thread = io_thread();
        let (remote, home) = (io_thread.remote().clone(), context.remote());
        context.schedule_once(move || {
            let borrowed = [1, 2];
            let future = async {
                // What only the loop can do, and then something that comes from another thread.
                let spawned = home.spawn(yield_now).expect("a stack");
                spawned.await.expect("no panic");
                remote.schedule_once(|| _ = sender.send(3));
                receiver.await.expect("sent") + borrowed.iter().sum::<i32>()
            };
            place.set(Some(task::block_on(future)));
        });
        context.run_until(|| result.get().is_some());
        assert_eq!(result.get(), Some(6));
    });
}

#[test]
fn a_panic_in_a_future_comes_out_of_the_wait() {
    let fails = || async { panic!("in a poll") };
    assert_eq!(message_of(|| task::block_on(fails())), "in a poll");
    let context = context();
    assert_eq!(message_of(|| context.block_on(|| task::block_on(fails()))), "in a poll");
    context.schedule_once(move || task::block_on(fails()));
    assert_eq!(message_of(|| _ = context.poll(true)), "in a poll");
    settle(&context);
}

#[test]
fn a_coroutine_that_is_cancelled_drops_its_future_in_place() {
    let context = context();
    let events = Rc::new(RefCell::new(Vec::new()));
    let on_drop = |event| {
        let events = events.clone();
        OnDrop(move || events.borrow_mut().push((event, aioco::in_coroutine())))
    };
    let (of_the_body, of_the_future) = (on_drop("body"), on_drop("future"));
    let waiting = context.spawn_local(move || {
        let _body = of_the_body;
        task::block_on(async move {
            let _future = of_the_future;
            future::pending::<()>().await
        });
    });
    let waiting = waiting.expect("a stack");
    settle(&context);
    assert_eq!(*events.borrow(), []);
    waiting.cancel();
    settle(&context);
    assert_eq!(*events.borrow(), [("future", true), ("body", true)]);
    assert_cancelled(waiting.join());

    // One that is driven by its handle, without a loop.
    let dropped = Count::default();
    let guard = dropped.guard();
    let driven = coroutine(move || {
        task::block_on(async move {
            let _guard = guard;
            future::pending::<()>().await
        })
    });
    driven.enter();
    driven.enter();
    assert_eq!(dropped.get(), 0);
    drop(driven);
    assert_eq!(dropped.get(), 1);
}

#[test]
fn a_time_limit_ends_a_wait_for_a_future() {
    within(LIMIT, || {
        let context = context();
        let dropped = Count::default();
        context.block_on(|| {
            let guard = dropped.guard();
            let never = async {
                let _guard: Guard = guard;
                future::pending::<()>().await
            };
            assert!(aio::timeout(Duration::from_millis(1), || task::block_on(never)).is_err());
            assert_eq!(dropped.get(), 1);
            assert_eq!(aio::timeout(LIMIT, || task::block_on(async { 1 })), Ok(1));
        });
    });
}

#[test]
fn a_coroutine_sleeps_by_the_clock_of_a_runtime() {
    within(LIMIT, || {
        let runtime = multi_thread();
        let _entered = runtime.enter();
        context().block_on(|| task::block_on(tokio::time::sleep(Duration::from_millis(1))));
    });
}

#[test]
fn a_waker_that_outlives_its_coroutine_wakes_nobody() {
    let context = context();
    let kept = Arc::new(Mutex::new(None));
    let place = kept.clone();
    spawn(&context, move || {
        task::block_on(poll_fn(|context| {
            *place.lock().unwrap() = Some(context.waker().clone());
            Poll::Ready(())
        }));
    })
    .join()
    .expect("no panic");
    let waker = kept.lock().unwrap().take().expect("polled");
    // The next one has the same control block, as the pool is a stack.
    let polls = Rc::new(Cell::new(0));
    let next = {
        let polls = polls.clone();
        context.spawn_local(move || task::block_on(ready_at(2, polls))).expect("a stack")
    };
    settle(&context);
    thread::scope(|scope| {
        scope.spawn(|| waker.wake_by_ref());
        waker.wake_by_ref();
    });
    settle(&context);
    assert_eq!(polls.get(), 1, "a stranger was woken");
    next.cancel();
    settle(&context);
}

#[test]
fn waiting_for_a_future_allocates_nothing() {
    let context = context();
    context.block_on(|| {
        let polls = Rc::new(Cell::new(0));
        let wait = || {
            polls.set(0);
            task::block_on(poll_fn(|context| {
                polls.set(polls.get() + 1);
                context.waker().wake_by_ref();
                if polls.get() < 3 { Poll::Pending } else { Poll::Ready(()) }
            }));
        };
        assert_eq!(allocations_of(wait), 0);
        assert_eq!(allocations_of(|| drop(black_box(Box::new(1)))), 1, "they aren't counted");
    });
}

// ---- coroutines in async code ---------------------------------------------------------------------------------------

#[test]
fn async_code_awaits_coroutines() {
    let io_thread = Arc::new(io_thread());
    on_each_executor(move || {
        let io_thread = io_thread.clone();
        async move {
            let handle = io_thread.remote().spawn(|| {
                aio::sleep(Duration::from_millis(1));
                42
            });
            assert_eq!(handle.expect("a stack").await.expect("no panic"), 42);
            let fails = io_thread.remote().spawn(|| panic!("as it should")).expect("a stack");
            let payload = fails.await.map(drop).expect_err("a panic");
            assert_eq!(payload.downcast_ref(), Some(&"as it should"));
            let never = io_thread.remote().spawn(|| aio::sleep(Duration::MAX)).expect("a stack");
            never.cancel();
            assert!(never.await.expect_err("cancelled").is::<Cancelled>());
        }
    });
}

#[test]
fn a_handle_is_awaited_on_the_thread_of_its_own_loop() {
    let context = context();
    let handle = spawn(&context, yield_now);
    context.block_on(|| task::block_on(handle)).expect("no panic");
}

#[test]
fn the_latest_waker_is_woken() {
    let context = context();
    let (before, after) = (Arc::<Wakes>::default(), Arc::<Wakes>::default());
    let mut handle = spawn(&context, || 1);
    assert!(poll_once(&mut handle, &before).is_pending());
    assert!(poll_once(&mut handle, &after).is_pending());
    settle(&context);
    assert_eq!((before.get(), after.get()), (0, 1));
    let Poll::Ready(result) = poll_once(&mut handle, &before) else { panic!("it has ended") };
    assert_eq!(result.expect("no panic"), 1);
}

#[test]
fn a_handle_that_is_dropped_lets_go_of_its_waker_and_of_its_coroutine() {
    let context = context();
    let wakes = Arc::<Wakes>::default();
    let ended = Count::default();
    let guard = ended.guard();
    let mut handle = spawn(&context, move || drop(guard));
    assert!(poll_once(&mut handle, &wakes).is_pending());
    assert_eq!(Arc::strong_count(&wakes), 2);
    drop(handle);
    assert_eq!(Arc::strong_count(&wakes), 1, "the waker is kept");
    settle(&context);
    assert_eq!((ended.get(), wakes.get()), (1, 0));
}

#[test]
fn a_handle_can_be_joined_after_it_was_polled() {
    let context = context();
    let wakes = Arc::<Wakes>::default();
    // Joined from where it is spawned, so that it starts in the join.
    let sum = context.block_on(|| {
        let mut first = spawn(&context, || 1);
        assert!(poll_once(&mut first, &wakes).is_pending());
        let mut second = spawn(&context, || {
            yield_now();
            2
        });
        assert!(poll_once(&mut second, &wakes).is_pending());
        first.join().expect("no panic") + second.join().expect("no panic")
    });
    assert_eq!(sum, 3);
}

#[test]
fn an_output_is_given_once() {
    let context = context();
    let wakes = Arc::<Wakes>::default();
    let taken = || {
        let mut handle = spawn(&context, || 1);
        settle(&context);
        assert!(poll_once(&mut handle, &wakes).is_ready());
        assert!(handle.is_finished());
        handle
    };
    assert!(message_of(|| _ = poll_once(&mut taken(), &wakes)).contains("given it away"));
    assert!(message_of(|| _ = taken().join()).contains("given it away"));
}

#[test]
fn an_await_that_is_given_up_loses_nothing() {
    within(LIMIT, || {
        let io_thread = io_thread();
        let (sender, receiver) = oneshot::channel();
        let mut handle = io_thread.remote().spawn(|| task::block_on(receiver)).expect("a stack");
        let runtime = current_thread();
        runtime.block_on(async {
            assert!(tokio::time::timeout(Duration::from_millis(1), &mut handle).await.is_err());
        });
        sender.send(5).expect("it waits");
        assert_eq!(runtime.block_on(handle).expect("no panic"), Ok(5));
    });
}

#[test]
fn many_tasks_await_many_coroutines_while_they_move() {
    within(LIMIT, || {
        let io_threads = Arc::new([io_thread(), io_thread()]);
        let executor = Arc::new(Executor::default());
        let sum = Arc::new(AtomicUsize::new(0));
        let n = scaled(20_000);
        for number in 0..n {
            let (io_threads, sum) = (io_threads.clone(), sum.clone());
            executor.spawn(async move {
                let mut handle = io_threads[number % 2].remote().spawn(move || number).expect("a stack");
                // Polled by one waker, then by another.
                let wakes = Arc::<Wakes>::default();
                let first = poll_once(&mut handle, &wakes);
                let result = match first {
                    Poll::Ready(result) => result,
                    Poll::Pending => handle.await,
                };
                sum.fetch_add(result.expect("no panic"), Ordering::Relaxed);
            });
        }
        executor.run(2);
        assert_eq!(sum.load(Ordering::Relaxed), n * (n - 1) / 2);
    });
}

// ---- messages -------------------------------------------------------------------------------------------------------

type Message = (usize, usize);

fn messages_of(sender: usize) -> impl Iterator<Item = Message> {
    (0..scaled(2000)).map(move |n| (sender, n))
}

async fn send_all(sender: Sender<Message>, number: usize) {
    for message in messages_of(number) {
        sender.send_async(message).await.expect("open");
    }
}

async fn receive_all(receiver: Receiver<Message>) -> Vec<Message> {
    let mut messages = Vec::new();
    loop {
        match receiver.recv_async().await {
            Ok(message) => messages.push(message),
            Err(error) => {
                assert_eq!(error, RecvError::Closed);
                return messages;
            }
        }
    }
}

/// Each sender's messages come in order, to each receiver.
fn assert_all_arrived(received: &[Vec<Message>], senders: usize) {
    for messages in received {
        for number in 0..senders {
            assert!(messages.iter().filter(|message| message.0 == number).is_sorted());
        }
    }
    let mut all = received.concat();
    all.sort();
    assert!(all.into_iter().eq((0..senders).flat_map(messages_of)), "lost, or twice");
}

#[test]
fn messages_go_between_tasks_coroutines_and_threads() {
    within(LIMIT, || {
        for capacity in [1, 7] {
            let (sender, receiver) = channel(capacity);
            let (io_thread, runtime) = (io_thread(), multi_thread());
            let executor = Arc::new(Executor::default());
            let received = Arc::new(Mutex::new(Vec::new()));
            let place = received.clone();
            let keep = move |messages| place.lock().unwrap().push(messages);

            runtime.spawn(send_all(sender.clone(), 0));
            executor.spawn(send_all(sender.clone(), 1));
            let (by_coroutine, by_thread) = (sender.clone(), sender);
            let coroutine = io_thread.remote().spawn(move || messages_of(2).try_for_each(|m| by_coroutine.send(m)));
            let thread = thread::spawn(move || messages_of(3).try_for_each(|m| by_thread.send(m)));

            let (from, take) = (receiver.clone(), keep.clone());
            let task = runtime.spawn(async move { take(receive_all(from).await) });
            let (from, take) = (receiver.clone(), keep.clone());
            executor.spawn(async move { take(receive_all(from).await) });
            let (from, take) = (receiver.clone(), keep.clone());
            let receiving = io_thread.remote().spawn(move || take(from.iter().collect()));
            executor.run(2);
            keep(receiver.iter().collect());

            runtime.block_on(task).expect("no panic");
            receiving.expect("a stack").join().expect("no panic");
            coroutine.expect("a stack").join().expect("no panic").expect("open");
            thread.join().expect("no panic").expect("open");
            assert_all_arrived(&received.lock().unwrap(), 4);
        }
    });
}

#[test]
fn no_message_is_lost_by_those_who_give_up() {
    within(LIMIT, || {
        let (sender, receiver) = channel(1);
        let (runtime, received) = (multi_thread(), Arc::new(Mutex::new(Vec::new())));
        let receiving: Vec<_> = (0..2)
            .map(|_| {
                let (receiver, received) = (receiver.clone(), received.clone());
                runtime.spawn(async move {
                    let mut messages = Vec::new();
                    loop {
                        // Given up after some polls, and begun anew.
                        match few_polls(receiver.recv_async(), messages.len() % 3).await {
                            None => tokio::task::yield_now().await,
                            Some(Ok(message)) => messages.push(message),
                            Some(Err(_)) => break received.lock().unwrap().push(messages),
                        }
                    }
                })
            })
            .collect();
        for number in 0..2 {
            let sender = sender.clone();
            runtime.spawn(async move {
                for message in messages_of(number) {
                    let mut next = Some(message);
                    while let Some(message) = next.take() {
                        let mut sending = pin!(sender.send_async(message));
                        match few_polls(sending.as_mut(), message.1 % 3).await {
                            None => {
                                next = sending.take_back();
                                tokio::task::yield_now().await;
                            }
                            Some(sent) => sent.expect("open"),
                        }
                    }
                }
            });
        }
        drop((sender, receiver));
        receiving.into_iter().for_each(|task| runtime.block_on(task).expect("no panic"));
        // A message that was on its way to one who gave up may come behind a later one, of another receiver's.
        let mut all = received.lock().unwrap().concat();
        all.sort();
        assert!(all.into_iter().eq((0..2).flat_map(messages_of)), "lost, or twice");
    });
}

/// Polls a future so many times more than once, and gives it up then.
async fn few_polls<F: Future>(future: F, mut more: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if more == 0 => Poll::Ready(None),
        Poll::Pending => {
            more -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

#[test]
fn tasks_and_coroutines_wait_in_one_line() {
    let context = context();
    let (sender, receiver) = channel(1);
    let wakes = [(); 2].map(|()| Arc::<Wakes>::default());
    let wait_in_coroutine = || {
        let receiver = receiver.clone();
        let handle = spawn(&context, move || receiver.recv());
        settle(&context);
        handle
    };
    let mut first = Box::pin(receiver.recv_async());
    assert!(poll_once(&mut first, &wakes[0]).is_pending());
    let second = wait_in_coroutine();
    let mut third = Box::pin(receiver.recv_async());
    assert!(poll_once(&mut third, &wakes[1]).is_pending());
    let fourth = wait_in_coroutine();

    // Polled in another order than they came: that doesn't matter.
    (1..=4).for_each(|n| sender.try_send(n).expect("they wait"));
    assert_eq!((wakes[0].get(), wakes[1].get()), (1, 1));
    assert_eq!(poll_once(&mut third, &wakes[0]), Poll::Ready(Ok(3)));
    assert_eq!(poll_once(&mut first, &wakes[0]), Poll::Ready(Ok(1)));
    assert_eq!((second.join().expect("no panic"), fourth.join().expect("no panic")), (Ok(2), Ok(4)));
}

#[test]
fn a_receiver_that_is_dropped_hands_its_message_on() {
    let (sender, receiver) = channel(1);
    let wakes = [(); 2].map(|()| Arc::<Wakes>::default());
    let mut first = Box::pin(receiver.recv_async());
    let mut second = Box::pin(receiver.recv_async());
    assert!(poll_once(&mut first, &wakes[0]).is_pending());
    assert!(poll_once(&mut second, &wakes[1]).is_pending());
    sender.try_send(1).expect("they wait");
    assert_eq!((wakes[0].get(), wakes[1].get()), (1, 0));
    drop(first);
    assert_eq!((wakes[0].get(), wakes[1].get()), (1, 1));
    // And to the front, if nobody waits.
    sender.try_send(2).expect("room");
    drop(second);
    assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(1), Ok(2)));

    // One that has no message is just not in the line any more, and its waker is gone with it.
    let mut first = Box::pin(receiver.recv_async());
    assert!(poll_once(&mut first, &wakes[0]).is_pending());
    drop(first);
    assert_eq!(Arc::strong_count(&wakes[0]), 1);
    sender.try_send(3).expect("room");
    assert_eq!(receiver.try_recv(), Ok(3));
}

#[test]
fn a_sender_that_is_dropped_leaves_with_its_message() {
    let (sender, receiver) = channel(1);
    let dropped = Count::default();
    let wakes = Arc::<Wakes>::default();
    sender.try_send(None).expect("room");
    let mut first = Box::pin(sender.send_async(Some(dropped.guard())));
    let mut second = Box::pin(sender.send_async(None));
    assert!(poll_once(&mut first, &wakes).is_pending());
    assert!(poll_once(&mut second, &wakes).is_pending());
    drop(first);
    assert_eq!(dropped.get(), 1);
    assert!(receiver.try_recv().is_ok());
    assert_eq!(wakes.get(), 1);
    assert!(matches!(poll_once(&mut second, &wakes), Poll::Ready(Ok(()))));

    // One that was sent for is in the channel, whatever becomes of the future.
    let mut third = Box::pin(sender.send_async(Some(dropped.guard())));
    assert!(poll_once(&mut third, &wakes).is_pending());
    assert!(receiver.try_recv().is_ok_and(|message| message.is_none()));
    drop(third);
    assert_eq!(dropped.get(), 1);
    assert!(receiver.try_recv().is_ok_and(|message| message.is_some()));
}

#[test]
fn a_message_is_taken_back_unless_it_is_sent() {
    let (sender, receiver) = channel(1);
    let wakes = Arc::<Wakes>::default();
    let mut unpolled = Box::pin(sender.send_async(1));
    assert_eq!(unpolled.as_mut().take_back(), Some(1));
    assert_eq!(unpolled.as_mut().take_back(), None);

    let mut sent = Box::pin(sender.send_async(2));
    assert_eq!(poll_once(&mut sent, &wakes), Poll::Ready(Ok(())));
    assert_eq!(sent.as_mut().take_back(), None);

    let mut waiting = Box::pin(sender.send_async(3));
    assert!(poll_once(&mut waiting, &wakes).is_pending());
    assert_eq!(waiting.as_mut().take_back(), Some(3));
    let mut waiting = Box::pin(sender.send_async(4));
    assert!(poll_once(&mut waiting, &wakes).is_pending());
    assert_eq!(receiver.try_recv(), Ok(2));
    assert_eq!(waiting.as_mut().take_back(), None);
    assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(4), Err(RecvError::Empty)));
}

#[test]
fn a_channel_that_closes_tells_tasks() {
    let wakes = Arc::<Wakes>::default();
    let (sender, receiver) = channel(1);
    let mut receiving = Box::pin(receiver.recv_async());
    assert!(poll_once(&mut receiving, &wakes).is_pending());
    drop(sender);
    assert_eq!(wakes.get(), 1);
    assert_eq!(poll_once(&mut receiving, &wakes), Poll::Ready(Err(RecvError::Closed)));
    assert_eq!(task::block_on(receiver.recv_async()), Err::<u32, _>(RecvError::Closed));

    let (sender, receiver) = channel(1);
    sender.try_send(1).expect("room");
    let mut sending = Box::pin(sender.send_async(2));
    assert!(poll_once(&mut sending, &wakes).is_pending());
    receiver.close();
    assert_eq!(wakes.get(), 2);
    assert_eq!(poll_once(&mut sending, &wakes), Poll::Ready(Err(SendError::Closed(2))));
    assert_eq!(task::block_on(sender.send_async(3)), Err(SendError::Closed(3)));
    assert_eq!(task::block_on(receiver.recv_async()), Ok(1));

    // Told, but asked for it back instead.
    let (sender, receiver) = channel(1);
    sender.try_send(1).expect("room");
    let mut sending = Box::pin(sender.send_async(2));
    assert!(poll_once(&mut sending, &wakes).is_pending());
    drop(receiver);
    assert_eq!(sending.as_mut().take_back(), Some(2));
}

#[test]
fn the_latest_waker_of_one_who_waits_for_a_channel_is_woken() {
    let (sender, receiver) = channel(1);
    let (before, after) = (Arc::<Wakes>::default(), Arc::<Wakes>::default());
    let mut receiving = Box::pin(receiver.recv_async());
    assert!(poll_once(&mut receiving, &before).is_pending());
    assert!(poll_once(&mut receiving, &after).is_pending());
    assert_eq!(Arc::strong_count(&before), 1, "the waker is kept");
    sender.try_send(1).expect("room");
    assert_eq!((before.get(), after.get()), (0, 1));

    sender.try_send(2).expect("room");
    let mut sending = Box::pin(sender.send_async(3));
    assert!(poll_once(&mut sending, &after).is_pending());
    assert!(poll_once(&mut sending, &before).is_pending());
    assert_eq!(receiver.try_recv(), Ok(2));
    assert_eq!((before.get(), after.get()), (1, 1));
}

/// Wakers are other people's code, which may use the channel.
#[test]
fn a_waker_may_use_the_channel() {
    struct Curious(Receiver<u32>, AtomicU32);

    impl Wake for Curious {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1 + self.0.len() as u32, Ordering::Relaxed);
        }
    }

    impl Drop for Curious {
        fn drop(&mut self) {
            assert!(self.0.len() < 2);
        }
    }

    within(LIMIT, || {
        let (sender, receiver) = channel(1);
        let mut receiving = Box::pin(receiver.recv_async());
        let last = Arc::new(Curious(receiver.clone(), AtomicU32::new(0)));
        for _ in 0..2 {
            let waker = Waker::from(Arc::new(Curious(receiver.clone(), AtomicU32::new(0))));
            assert!(receiving.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        let waker = Waker::from(last.clone());
        assert!(receiving.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        sender.try_send(1).expect("room");
        assert_eq!(last.1.load(Ordering::Relaxed), 1);
        assert!(receiving.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    });
}

#[test]
fn waiting_for_a_channel_allocates_nothing() {
    let (sender, receiver) = channel(1);
    let wakes = Arc::<Wakes>::default();
    let allocations = allocations_of(|| {
        let mut receiving = pin!(receiver.recv_async());
        assert!(poll_once(&mut receiving, &wakes).is_pending());
        sender.try_send(1).expect("it waits");
        assert!(poll_once(&mut receiving, &wakes).is_ready());
        sender.try_send(2).expect("room");
        let mut sending = pin!(sender.send_async(3));
        assert!(poll_once(&mut sending, &wakes).is_pending());
        assert_eq!(receiver.try_recv(), Ok(2));
        assert!(poll_once(&mut sending, &wakes).is_ready());
    });
    assert_eq!(allocations, 0);
}

#[test]
fn a_future_of_a_channel_is_over_once() {
    let (sender, receiver) = channel(1);
    let wakes = Arc::<Wakes>::default();
    let mut sending = Box::pin(sender.send_async(1));
    assert!(poll_once(&mut sending, &wakes).is_ready());
    assert!(message_of(|| _ = poll_once(&mut sending, &wakes)).contains("after it was over"));
    let mut receiving = Box::pin(receiver.recv_async());
    assert!(poll_once(&mut receiving, &wakes).is_ready());
    assert!(message_of(|| _ = poll_once(&mut receiving, &wakes)).contains("after it was over"));
}

#[test]
fn futures_of_channels_go_from_thread_to_thread() {
    fn assert_goes<T: Send + Sync>(_: &T) {}
    let (sender, receiver) = channel(1);
    assert_goes(&sender.send_async(Cell::new(1)));
    assert_goes(&receiver.recv_async());
}
