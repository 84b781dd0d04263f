//! The end of a context: in which order it drops what it has, and what can still be done with what is left of it.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use aioco::aio::{FdCallbacks, IoThread, Polling};
use aioco::coroutine::Interest;
use aioco::{JoinHandle, aio, fd, park, yield_now};
use common::{
    Count, OnDrop, alike, assert_cancelled, builder_like, child, each, each_here, eventfd, raise, rounds, spawn,
};

const MILLI: Duration = Duration::from_millis(1);

// ---- order ----------------------------------------------------------------------------------------------------------

#[test]
fn a_context_ends_what_it_has_in_the_order_that_its_documentation_says() {
    each(|context| {
        let context = alike(context);
        let order: Arc<Mutex<Vec<&str>>> = Arc::default();
        let says = |what: &'static str| {
            let order = order.clone();
            OnDrop(move || order.lock().unwrap().push(what))
        };
        let watched = Arc::new(eventfd());
        // Bottom halves and handlers first, so that it isn't the order of their making.
        let guard = says("a closure");
        context.schedule_once(move || drop(guard));
        let guard = says("a handler");
        let callback = move || {
            let _guard = &guard;
        };
        let handler =
            context.add_owned_fd(watched.clone(), FdCallbacks::new().on_readable(callback)).expect("a handler");
        let lock = Arc::new(Mutex::new(()));
        let (guard, event, locks) = (says("one that waits for a descriptor"), watched.clone(), lock.clone());
        let waiting = spawn(&context, move || {
            let _guard = guard;
            let _locked = locks.lock().unwrap();
            fd::wait_readable(&event).expect("a wait");
        });
        context.poll(false);
        assert!(matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
        // The closure has had its turn: another one.
        let guard = says("a closure");
        context.schedule_once(move || drop(guard));
        let guard = says("one that never started");
        let unstarted = spawn(&context, move || drop(guard));
        order.lock().unwrap().clear();
        drop(context);
        assert_eq!(
            *order.lock().unwrap(),
            ["one that never started", "one that waits for a descriptor", "a closure", "a handler"]
        );
        assert!(!matches!(lock.try_lock(), Err(TryLockError::WouldBlock)), "locks are let go of");
        assert_cancelled(unstarted.join());
        assert_cancelled(waiting.join());
        drop(handler);
    });
}

// ---- what is left ---------------------------------------------------------------------------------------------------

/// The numbers of the open descriptors.
fn open_numbers() -> BTreeSet<i32> {
    let is_open = |number: &i32| {
        // SAFETY: only asks.
        unsafe { libc::fcntl(*number, libc::F_GETFD) != -1 }
    };
    (0..1000).filter(is_open).collect()
}

#[test]
fn nothing_is_written_to_files_that_have_got_the_numbers_of_an_ended_context() {
    let exit = child("", |_| {
        each_here(|context| {
            for keeps_remotes in [true, false] {
                let before = open_numbers();
                let context = alike(context);
                let own: BTreeSet<_> = open_numbers().difference(&before).copied().collect();
                let (remote, home) = (context.remote(), context.home());
                let (bh, timer) = (context.bottom_half(|| ()), context.timer(|| ()));
                let (trigger, alarm) = (bh.trigger(), timer.alarm());
                let event = Rc::new(eventfd());
                let handler = context.add_owned_fd(event, FdCallbacks::new().on_readable(|| ())).expect("a handler");
                let place = Arc::new(OnceLock::<Waker>::new());
                let given = place.clone();
                let parked = spawn(&context, move || {
                    given.get_or_init(park::waker);
                    park::park();
                });
                // It has slept, and was woken.
                context.block_on(|| aio::sleep(MILLI));
                drop(context);
                assert_cancelled(parked.join());
                // These keep the eventfd, so that its number isn't used again; others do not.
                let kept = keeps_remotes.then_some((remote, home));
                let directory = tempfile::tempdir().expect("a directory");
                let files: Vec<File> = (0..20)
                    .map(|number| {
                        let path = directory.path().join(number.to_string());
                        File::options().create_new(true).read(true).write(true).open(path).expect("a file")
                    })
                    .collect();
                let reused = files.iter().filter(|file| own.contains(&file.as_raw_fd())).count();
                let kept_open = usize::from(kept.is_some());
                assert_eq!(reused, own.len() - kept_open, "{own:?}: others aren't used again");
                let waking = thread::spawn(move || {
                    for _ in 0..3 {
                        trigger.schedule();
                        trigger.schedule_idle();
                        alarm.arm_after(Duration::ZERO);
                        alarm.cancel();
                        handler.enable(Interest::Readable);
                        handler.disable(Interest::Readable);
                        place.get().expect("it has started").wake_by_ref();
                        if let Some((remote, _home)) = &kept {
                            remote.schedule_once(|| ());
                            remote.set_polling(Polling::up_to(MILLI));
                            assert_eq!(remote.spawn(|| ()).expect_err("ended").kind(), ErrorKind::NotConnected);
                            assert_eq!(remote.call(|| ()).expect_err("ended").kind(), ErrorKind::NotConnected);
                        }
                    }
                    drop(handler);
                });
                waking.join().expect("no panic");
                bh.schedule();
                timer.arm_after(MILLI);
                for mut file in files {
                    assert_eq!(file.metadata().expect("a file").len(), 0, "written to");
                    assert_eq!(file.read(&mut [0]).expect("a file"), 0);
                }
            }
        });
    });
    exit.assert_success();
}

#[test]
fn a_context_ends_with_handlers_and_waits_that_were_just_removed_or_just_added() {
    each(|context| {
        for round in 0..30 {
            let context = alike(context);
            let events: Vec<_> = (0..300).map(|_| Arc::new(eventfd())).collect();
            let (dropped, calls) = (Count::default(), Count::default());
            let mut handlers: Vec<_> = events
                .iter()
                .map(|event| {
                    let (count, guard) = (calls.clone(), dropped.guard());
                    let callback = move || {
                        let _guard = &guard;
                        count.raise();
                    };
                    context.add_owned_fd(event.clone(), FdCallbacks::new().on_readable(callback)).expect("a handler")
                })
                .collect();
            let waiting = events.iter().map(|event| {
                let event = event.clone();
                spawn(&context, move || fd::wait_readable(&event))
            });
            let waiting: Vec<_> = waiting.collect();
            for _ in 0..round % 3 {
                context.poll(false);
            }
            drop(handlers.drain(..150));
            assert_eq!(dropped.get(), 150, "at once");
            waiting[..150].iter().for_each(JoinHandle::cancel);
            if round % 2 == 0 {
                events.iter().for_each(|event| raise(event));
            }
            drop(context);
            assert_eq!((dropped.get(), calls.get()), (300, 0));
            waiting.into_iter().for_each(|handle| assert_cancelled(handle.join()));
            drop(handlers);
            assert!(events.into_iter().all(|event| Arc::into_inner(event).is_some()), "nobody has them");
        }
    });
}

// ---- owners ---------------------------------------------------------------------------------------------------------

/// A device that has requests carried out by a context of another thread, and takes them along when it goes.
struct Device {
    requests: Vec<JoinHandle<()>>,
    state: Arc<Mutex<Vec<usize>>>,
}

impl Device {
    fn submit(&mut self, remote: &aio::Remote, number: usize) {
        let state = self.state.clone();
        let request = move || {
            state.lock().unwrap().push(number);
            yield_now();
            aio::sleep(Duration::from_secs(3600));
        };
        self.requests.push(remote.spawn(request).expect("a stack"));
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.requests.iter().for_each(JoinHandle::cancel);
        self.requests.drain(..).for_each(|request| assert_cancelled(request.join()));
    }
}

#[test]
fn whoever_goes_takes_along_what_it_has_scheduled_elsewhere() {
    each(|context| {
        let io_thread = IoThread::with("io", builder_like(context)).expect("a thread");
        for round in rounds(300) {
            let mut device = Device { requests: Vec::new(), state: Arc::default() };
            (0..8).for_each(|number| device.submit(io_thread.remote(), number));
            (0..round % 50).for_each(|_| std::hint::spin_loop());
            let state = device.state.clone();
            drop(device);
            assert_eq!(Arc::strong_count(&state), 1, "no request has it any more");
            let started = state.lock().unwrap();
            assert!(started.is_sorted_by(|one, next| one < next), "once each, and in order: {started:?}");
        }
    });
}

/// A queue of requests that a timer lets through one by one.
#[derive(Default)]
struct Throttle {
    waiting: RefCell<VecDeque<Waker>>,
    is_open: Cell<bool>,
    credits: Cell<u32>,
}

impl Throttle {
    fn pass(&self) {
        while !self.is_open.get() && self.credits.get() == 0 {
            self.waiting.borrow_mut().push_back(park::waker());
            park::park();
        }
        self.credits.set(self.credits.get().saturating_sub(1));
    }

    fn let_one_through(&self) {
        self.credits.set(self.credits.get() + 1);
        let next = self.waiting.borrow_mut().pop_front();
        next.into_iter().for_each(Waker::wake);
    }

    fn open(&self) {
        self.is_open.set(true);
        let all = self.waiting.take();
        all.into_iter().for_each(Waker::wake);
    }
}

#[test]
fn a_queue_whose_timer_goes_loses_no_request() {
    each(|context| {
        for let_through in 0..6 {
            let throttle = Rc::new(Throttle::default());
            let own = Rc::new(OnceLock::<aio::Timer>::new());
            let (queue, this) = (throttle.clone(), Rc::downgrade(&own));
            let timer = context.timer(move || {
                queue.let_one_through();
                if let Some(own) = this.upgrade() {
                    own.get().expect("made").arm_after(MILLI / 10);
                }
            });
            timer.arm_after(MILLI / 10);
            own.set(timer).expect("made once");
            let done = Count::default();
            let requests: Vec<_> = (0..10)
                .map(|_| {
                    let (throttle, guard) = (throttle.clone(), done.guard());
                    let request = move || {
                        throttle.pass();
                        drop(guard);
                    };
                    context.spawn_local(request).expect("a stack")
                })
                .collect();
            context.run_until(|| done.get() >= let_through);
            // Detached in mid-flight: one may have been woken and not have run.
            drop(own);
            throttle.open();
            context.run_until(|| requests.iter().all(|request| request.is_finished()));
            requests.into_iter().for_each(|request| request.join().expect("no panic"));
            assert!(!context.poll(false));
        }
    });
}
