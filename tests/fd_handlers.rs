//! Handlers of descriptors, and transactions: the same with every monitor.

mod common;

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use aioco::aio::{FdCallbacks, FdHandler, MonitorKind};
use aioco::coroutine::Interest;
use aioco::{AioContext, aio, fd};
use common::{Count, child, each, eventfd, eventually, lower, raise, settle, sockets, spawn};

/// A handler that counts how often each of its callbacks was called, and does nothing else.
struct Counted<'fd> {
    handler: FdHandler<'fd>,
    readable: Count,
    writable: Count,
    error: Count,
}

impl<'fd> Counted<'fd> {
    fn new(context: &AioContext, fd: &'fd impl AsFd) -> Self {
        let (callbacks, [readable, writable, error]) = counting();
        let handler = context.add_fd(fd, callbacks).expect("a handler");
        Self { handler, readable, writable, error }
    }

    fn calls(&self) -> [u32; 3] {
        [self.readable.get(), self.writable.get(), self.error.get()]
    }
}

fn counting() -> (FdCallbacks, [Count; 3]) {
    let counts: [Count; 3] = Default::default();
    let [readable, writable, error] = counts.clone().map(|count| move || count.raise());
    (FdCallbacks::new().on_readable(readable).on_writable(writable).on_error(error), counts)
}

fn on_readable(callback: impl FnMut() + 'static) -> FdCallbacks {
    FdCallbacks::new().on_readable(callback)
}

/// A turn that looks at descriptors.
fn turn(context: &AioContext) -> bool {
    context.poll(false)
}

/// Closes `old`, and gives its number to `new`.
fn replace(old: OwnedFd, new: &OwnedFd) -> OwnedFd {
    let number = old.into_raw_fd();
    // SAFETY: `dup2` closes the old descriptor, which is ours; its number names a duplicate of the new one.
    unsafe {
        assert_eq!(libc::dup2(new.as_raw_fd(), number), number);
        OwnedFd::from_raw_fd(number)
    }
}

// ---- callbacks ------------------------------------------------------------------------------------------------------

#[test]
fn a_callback_is_called_once_a_turn_for_as_long_as_its_side_is_ready() {
    each(|context| {
        let event = eventfd();
        let counted = Counted::new(context, &event);
        counted.handler.disable(Interest::Writable);
        assert!(!turn(context));
        raise(&event);
        for calls in 1..=3 {
            assert!(turn(context), "progress");
            assert_eq!(counted.calls(), [calls, 0, 0]);
        }
        lower(&event);
        // A monitor may have seen it before.
        settle(context);
        let before = counted.calls();
        assert!(!turn(context) && before[0] <= 4);
        raise(&event);
        assert!(context.poll(true));
        assert_eq!(counted.calls()[0], before[0] + 1);
    });
}

#[test]
fn sides_are_enabled_and_disabled_apart() {
    each(|context| {
        let (ours, mut theirs) = sockets();
        let counted = Counted::new(context, &ours);
        assert!(turn(context));
        assert_eq!(counted.calls(), [0, 1, 0], "there is room, and no input");
        counted.handler.disable(Interest::Writable);
        settle(context);
        assert_eq!(counted.calls(), [0, 1, 0]);
        theirs.write_all(b"x").expect("room");
        assert!(context.poll(true));
        assert_eq!(counted.calls(), [1, 1, 0]);
        counted.handler.enable(Interest::Writable);
        counted.handler.disable(Interest::Readable);
        assert!(context.poll(true));
        assert_eq!(counted.calls(), [1, 2, 0]);
        counted.handler.enable(Interest::Readable);
        counted.handler.enable(Interest::Readable);
        assert!(context.poll(true));
        assert_eq!(counted.calls(), [2, 3, 0], "enabled twice is once");
    });
}

#[test]
fn a_disabled_side_is_not_called_for_an_event_that_has_been_seen() {
    each(|context| {
        let events = [eventfd(), eventfd()];
        let handlers: Rc<RefCell<Vec<FdHandler<'static>>>> = Rc::default();
        let calls = Rc::new(Cell::new(0));
        // Whoever comes first disables the other.
        for (own, event) in events.iter().enumerate() {
            let (others, calls) = (handlers.clone(), calls.clone());
            let callback = move || {
                calls.set(calls.get() + 1);
                others.borrow()[1 - own].disable(Interest::Readable);
            };
            let owned = event.try_clone().expect("a duplicate");
            handlers.borrow_mut().push(context.add_owned_fd(owned, on_readable(callback)).expect("a handler"));
        }
        events.iter().for_each(raise);
        assert!(context.poll(true));
        assert_eq!(calls.get(), 1);
        handlers.borrow_mut().clear();
    });
}

#[test]
fn a_hang_up_calls_all_sides_and_the_error_once() {
    each(|context| {
        let (ours, theirs) = sockets();
        let counted = Counted::new(context, &ours);
        counted.handler.disable(Interest::Writable);
        settle(context);
        drop(theirs);
        for _ in 0..5 {
            assert!(context.poll(true));
        }
        let [readable, writable, error] = counted.calls();
        assert!(readable >= 4 && writable == 0 && error == 1, "{:?}", counted.calls());
        counted.handler.disable(Interest::Readable);
        settle(context);
        let turns = (0..100).filter(|_| context.poll(false)).count();
        assert_eq!(turns, 0, "nobody is interested any more");
        counted.handler.enable_error();
        assert!(context.poll(true), "it still is hung up");
        assert_eq!(counted.error.get(), 2);
    });
}

#[test]
fn whoever_wants_to_write_is_told_of_a_hang_up() {
    each(|context| {
        let (reader, writer) = os_pipe();
        fill(&writer);
        let calls = Count::default();
        let count = calls.clone();
        let handler =
            context.add_fd(&writer, FdCallbacks::new().on_writable(move || count.raise())).expect("a handler");
        settle(context);
        assert_eq!(calls.get(), 0, "it is full");
        drop(reader);
        assert!(context.poll(true));
        assert!(calls.get() >= 1);
        drop(handler);
        settle(context);
    });
}

fn os_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    (reader.into(), writer.into())
}

/// Writes until there is no room.
fn fill(writer: &OwnedFd) {
    // SAFETY: the descriptor is open.
    unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    let mut writer = File::from(writer.try_clone().expect("a duplicate"));
    while writer.write(&[0; 4096]).is_ok() {}
}

#[test]
fn several_handlers_and_coroutines_share_a_descriptor() {
    each(|context| {
        let (ours, mut theirs) = sockets();
        let ours = Arc::new(ours);
        let (one, other) = (Counted::new(context, &ours), Counted::new(context, &ours));
        other.handler.disable(Interest::Writable);
        let waiting = [(); 2].map(|()| {
            let ours = ours.clone();
            spawn(context, move || fd::wait_readable(&*ours))
        });
        settle_but_writable(context);
        theirs.write_all(b"x").expect("room");
        context.run_until(|| waiting.iter().all(|handle| handle.is_finished()));
        assert!(one.readable.get() >= 1 && one.writable.get() >= 1 && other.readable.get() >= 1);
        assert_eq!(other.writable.get(), 0);
        waiting.into_iter().for_each(|handle| handle.join().expect("no panic").expect("a wait"));
    });
}

/// Some turns: a writable side has something to do in each.
fn settle_but_writable(context: &AioContext) {
    for _ in 0..5 {
        context.poll(false);
    }
}

#[test]
fn what_is_always_ready_is_ready_and_never_in_trouble_with_every_monitor() {
    each(|context| {
        for path in ["/proc/self/exe", "/", "/dev/null"] {
            let file = File::open(path).expect("it is there");
            let counted = Counted::new(context, &file);
            for turns in 1..=3 {
                assert!(context.poll(true));
                assert_eq!(counted.calls(), [turns, turns, 0], "{path}");
            }
        }
    });
}

#[test]
fn a_callback_may_change_and_remove_its_own_handler_and_others() {
    each(|context| {
        let (first, second) = (eventfd(), eventfd());
        let handlers: Rc<RefCell<Vec<Option<FdHandler<'static>>>>> = Rc::new(RefCell::new(vec![None, None]));
        let calls = Rc::new(Cell::new((0, 0)));
        let dropped = Count::default();
        {
            let (all, calls, guard) = (handlers.clone(), calls.clone(), dropped.guard());
            let callback = move || {
                let _guard = &guard;
                calls.set((calls.get().0 + 1, calls.get().1));
                all.borrow_mut().iter_mut().for_each(|handler| *handler = None);
            };
            let owned = first.try_clone().expect("a duplicate");
            handlers.borrow_mut()[0] = Some(context.add_owned_fd(owned, on_readable(callback)).expect("a handler"));
        }
        {
            let (all, calls, guard) = (handlers.clone(), calls.clone(), dropped.guard());
            let callback = move || {
                let _guard = &guard;
                calls.set((calls.get().0, calls.get().1 + 1));
                all.borrow_mut().iter_mut().for_each(|handler| *handler = None);
            };
            let owned = second.try_clone().expect("a duplicate");
            handlers.borrow_mut()[1] = Some(context.add_owned_fd(owned, on_readable(callback)).expect("a handler"));
        }
        raise(&first);
        raise(&second);
        context.poll(true);
        settle(context);
        let (first, second) = calls.get();
        assert_eq!(first + second, 1, "whoever was first removed both");
        assert_eq!(dropped.get(), 2);
    });
}

#[test]
fn a_panic_comes_out_of_the_turn_and_the_others_keep_theirs() {
    each(|context| {
        let (bad, good) = (eventfd(), eventfd());
        let calls = Count::default();
        let panics = Count::default();
        let count = panics.clone();
        let bad_handler = context.add_fd(
            &bad,
            on_readable(move || {
                count.raise();
                panic!("a bad handler")
            }),
        );
        let count = calls.clone();
        let _good_handler = context.add_fd(&good, on_readable(move || count.raise())).expect("a handler");
        raise(&bad);
        raise(&good);
        for panicked in 1..=2 {
            let payload = catch_unwind(AssertUnwindSafe(|| while context.poll(true) {}));
            assert_eq!(payload.expect_err("panics").downcast_ref(), Some(&"a bad handler"));
            assert_eq!(panics.get(), panicked, "it is called again");
        }
        drop(bad_handler);
        let before = calls.get();
        context.poll(true);
        context.poll(true);
        assert!(calls.get() > before);
    });
}

// ---- nested turns ---------------------------------------------------------------------------------------------------

#[test]
fn a_nested_turn_leaves_the_running_handler_alone_and_serves_the_others() {
    each(|context| {
        let (outer, inner) = (Rc::new(eventfd()), Rc::new(eventfd()));
        let (outer_calls, inner_calls) = (Count::default(), Count::default());
        let depth = Rc::new(Cell::new(0));
        let callback = {
            let (outer, inner) = (outer.clone(), inner.clone());
            let (outer_calls, inner_calls, depth) = (outer_calls.clone(), inner_calls.clone(), depth.clone());
            move || {
                assert_eq!(depth.replace(1), 0, "entered twice");
                outer_calls.raise();
                // The event is still there: the handler hasn't dealt with it.
                raise(&inner);
                let context = aio::current().expect("in a callback");
                while inner_calls.get() < outer_calls.get() {
                    context.poll(true);
                }
                lower(&outer);
                depth.set(0);
            }
        };
        let _outer = context.add_owned_fd(outer.clone(), on_readable(callback)).expect("a handler");
        let callback = {
            let (inner, inner_calls) = (inner.clone(), inner_calls.clone());
            move || {
                lower(&inner);
                inner_calls.raise();
            }
        };
        let _inner = context.add_owned_fd(inner, on_readable(callback)).expect("a handler");
        for calls in 1..=3 {
            raise(&outer);
            context.poll(true);
            settle(context);
            assert_eq!((outer_calls.get(), inner_calls.get()), (calls, calls));
        }
    });
}

#[test]
fn a_nested_turn_runs_what_the_outer_one_has_not_run_yet() {
    each(|context| {
        let events: [_; 4] = [(); 4].map(|()| Rc::new(eventfd()));
        let calls = Count::default();
        let handlers: Vec<_> = events
            .iter()
            .map(|event| {
                let (own, calls) = (event.clone(), calls.clone());
                let callback = move || {
                    lower(&own);
                    calls.raise();
                    if calls.get() == 1 {
                        aio::current().expect("in a callback").poll(false);
                        assert_eq!(calls.get(), 4);
                    }
                };
                context.add_owned_fd(event.clone(), on_readable(callback)).expect("a handler")
            })
            .collect();
        settle(context);
        events.iter().for_each(|event| raise(event));
        assert!(context.poll(true));
        settle(context);
        assert_eq!(calls.get(), 4);
        drop(handlers);
    });
}

// ---- other threads --------------------------------------------------------------------------------------------------

#[test]
fn changes_by_other_threads_reach_a_sleeping_loop() {
    each(|context| {
        let event = Arc::new(eventfd());
        raise(&event);
        let calls = Count::default();
        let count = calls.clone();
        let handler = context.add_owned_fd(event, on_readable(move || count.raise())).expect("a handler");
        handler.disable(Interest::Readable);
        settle(context);
        let handler = Arc::new(handler);
        for round in 1..=3 {
            let remote = handler.clone();
            let thread = thread::spawn(move || {
                thread::sleep(Duration::from_millis(5));
                remote.enable(Interest::Readable);
            });
            context.run_until(|| calls.get() >= round);
            handler.disable(Interest::Readable);
            thread.join().expect("no panic");
            settle(context);
        }
        // A handler is added from elsewhere by a call into the context.
        let remote = context.remote();
        let thread = thread::spawn(move || {
            let added = remote.call(|| {
                let context = aio::current().expect("in a call");
                let event = eventfd();
                raise(&event);
                let done = Rc::new(Cell::new(false));
                let flag = done.clone();
                let _handler = context.add_owned_fd(event, on_readable(move || flag.set(true))).expect("a handler");
                while !done.get() {
                    aioco::yield_now();
                }
            });
            added.expect("it goes on");
        });
        while !thread.is_finished() {
            context.poll(false);
        }
        thread.join().expect("no panic");
    });
}

#[test]
fn a_handler_that_another_thread_removes_is_not_called_afterwards_and_is_dropped_at_home() {
    each(|context| {
        let home = thread::current().id();
        for _ in 0..50 {
            let event = eventfd();
            raise(&event);
            let dropped_at = Arc::new(Mutex::new(None));
            let guard = {
                let place = dropped_at.clone();
                common::OnDrop(move || *place.lock().unwrap() = Some(thread::current().id()))
            };
            let callback = move || {
                let _guard = &guard;
            };
            let handler = context.add_owned_fd(event, on_readable(callback)).expect("a handler");
            let thread = thread::spawn(move || drop(handler));
            while dropped_at.lock().unwrap().is_none() {
                context.poll(false);
            }
            thread.join().expect("no panic");
            assert_eq!(*dropped_at.lock().unwrap(), Some(home));
        }
        settle(context);
    });
}

/// A descriptor with its handler.
type Owned = (Arc<OwnedFd>, FdHandler<'static>);

/// Few handlers and many, in turns, while another thread makes some of its own, and changes and removes them.
#[test]
fn handlers_that_come_and_go_by_the_hundred_miss_no_event() {
    each(|context| {
        let (remote, stop) = (context.remote(), Count::default());
        let (stopped, told_there, ended) = (stop.clone(), Count::default(), Count::default());
        let (told, end) = (told_there.clone(), ended.guard());
        let thread = thread::spawn(move || {
            let kept: Arc<Mutex<Vec<Owned>>> = Arc::default();
            let mut asked = 0;
            for number in 0.. {
                if number >= 20 && stopped.get() == 1 {
                    break;
                }
                let (kept_there, count) = (kept.clone(), told.clone());
                let add = move || {
                    let event = Arc::new(eventfd());
                    let own = event.clone();
                    let callback = move || {
                        lower(&own);
                        count.raise();
                    };
                    let context = aio::current().expect("in a call");
                    let handler = context.add_owned_fd(event.clone(), on_readable(callback)).expect("a handler");
                    kept_there.lock().unwrap().push((event, handler));
                };
                remote.call(add).expect("it goes on");
                let mut kept = kept.lock().unwrap();
                if kept.len() > 5 {
                    drop(kept.remove(0));
                }
                // Ready while it is disabled: told as soon as it isn't.
                let (event, handler) = &kept[kept.len() / 2];
                handler.disable(Interest::Readable);
                raise(event);
                handler.enable(Interest::Readable);
                asked += 1;
                while told.get() < asked {
                    remote.call(aioco::yield_now).expect("it goes on");
                }
            }
            remote.schedule_once(move || drop(end));
        });
        let mut events: Vec<(Rc<OwnedFd>, Count, FdHandler<'static>)> = Vec::new();
        for size in [200, 5, 120, 0, 64, 63, 65, 200, 5] {
            while events.len() < size {
                let (event, calls) = (Rc::new(eventfd()), Count::default());
                let (own, count) = (event.clone(), calls.clone());
                let callback = move || {
                    lower(&own);
                    count.raise();
                };
                let handler = context.add_owned_fd(event.clone(), on_readable(callback)).expect("a handler");
                events.push((event, calls, handler));
            }
            // From the middle: both old ones and new ones go.
            while events.len() > size {
                drop(events.remove(events.len() / 2));
            }
            let before: Vec<_> = events.iter().map(|(_, calls, _)| calls.get()).collect();
            for (number, (event, _, handler)) in events.iter().enumerate() {
                if number % 3 == 0 {
                    handler.disable(Interest::Readable);
                }
                raise(event);
            }
            events.iter().for_each(|(_, _, handler)| handler.enable(Interest::Readable));
            let all_told = || events.iter().zip(&before).all(|((_, calls, _), before)| calls.get() == before + 1);
            context.run_until(all_told);
        }
        stop.raise();
        context.run_until(|| ended.get() == 1);
        thread.join().expect("no panic");
        assert!(told_there.get() >= 20);
        settle(context);
    });
}

// ---- numbers and files ----------------------------------------------------------------------------------------------

#[test]
fn a_removed_handler_hears_nothing_of_its_number_or_its_file_again() {
    each(|context| {
        let mut event = eventfd();
        for round in 0..200 {
            let duplicate = event.try_clone().expect("a duplicate");
            let Counted { handler: old, readable: old_calls, .. } = Counted::new(context, &event);
            old.disable(Interest::Writable);
            if round % 2 == 0 {
                raise(&event);
            }
            drop(old);
            // The number is another file's from now on; the old file lives on.
            let fresh = eventfd();
            event = replace(event, &fresh);
            raise(&duplicate);
            let now = Counted::new(context, &event);
            now.handler.disable(Interest::Writable);
            settle(context);
            assert_eq!((old_calls.get(), now.readable.get()), (0, 0), "round {round}");
            raise(&event);
            assert!(context.poll(true));
            assert_eq!((old_calls.get(), now.readable.get()), (0, 1), "round {round}");
        }
    });
}

/// In the turn that has seen both events, the first callback closes the other's descriptor, and makes another with its
/// number.
#[test]
fn a_number_that_a_callback_gives_to_another_file_is_not_told_of_the_old_one() {
    each(|context| {
        for _ in 0..50 {
            let events = [eventfd(), eventfd()];
            events.iter().for_each(raise);
            let numbers = [0, 1].map(|own: usize| events[own].as_raw_fd());
            let duplicates = [0, 1].map(|own: usize| events[own].try_clone().expect("a duplicate"));
            let handlers: Rc<RefCell<Vec<FdHandler<'static>>>> = Rc::default();
            let (old, new, ended) = (Count::default(), Count::default(), Count::default());
            let fresh = Rc::new(eventfd());
            for (own, event) in events.into_iter().enumerate() {
                let (all, fresh) = (handlers.clone(), fresh.clone());
                let (calls, new_calls, guard) = (old.clone(), new.clone(), ended.guard());
                let callback = move || {
                    let _guard = &guard;
                    calls.raise();
                    // Both are closed. (The own number stays as it is: one is enough.)
                    all.borrow_mut().clear();
                    let number = numbers[1 - own];
                    // SAFETY: the number was just closed, and names a duplicate of the new file now, which is ours.
                    let event = unsafe {
                        assert_eq!(libc::dup2(fresh.as_raw_fd(), number), number);
                        OwnedFd::from_raw_fd(number)
                    };
                    let count = new_calls.clone();
                    let context = aio::current().expect("in a callback");
                    let handler = context.add_owned_fd(event, on_readable(move || count.raise()));
                    all.borrow_mut().push(handler.expect("a handler"));
                };
                handlers.borrow_mut().push(context.add_owned_fd(event, on_readable(callback)).expect("a handler"));
            }
            assert!(context.poll(true));
            settle(context);
            assert_eq!((old.get(), new.get(), ended.get()), (1, 0, 2));
            duplicates.iter().for_each(raise);
            settle(context);
            assert_eq!(new.get(), 0, "the old files live on, and have events");
            raise(&fresh);
            assert!(context.poll(true));
            assert_eq!((old.get(), new.get()), (1, 1));
            handlers.borrow_mut().clear();
        }
    });
}

#[test]
fn what_a_removed_handler_holds_is_dropped_at_once_whatever_the_kernel_is_doing() {
    each(|context| {
        let mut event = Rc::new(eventfd());
        let (calls, dropped) = (Count::default(), Count::default());
        for round in 1..=2000 {
            let (count, guard) = (calls.clone(), dropped.guard());
            let callback = move || {
                let _guard = &guard;
                count.raise();
            };
            let handler = context.add_owned_fd(event.clone(), on_readable(callback)).expect("a handler");
            if round % 3 == 0 {
                assert!(!context.poll(false));
            }
            if round % 2 == 0 {
                raise(&event);
            }
            drop(handler);
            assert_eq!(dropped.get(), round);
            if round % 2 == 0 {
                match round % 4 {
                    // Closed while it is ready; the next gets its number.
                    0 => event = Rc::new(eventfd()),
                    _ => lower(&event),
                }
            }
            if round % 7 == 0 {
                assert!(!context.poll(false));
            }
        }
        settle(context);
        assert_eq!(calls.get(), 0);
    });
}

/// A handler needs its descriptor to stay open, which the borrow sees to unless the handler is leaked. A duplicate keeps
/// the file of such a one alive.
#[test]
fn a_leaked_handler_whose_file_a_duplicate_keeps_alive_does_no_harm_to_others() {
    let exit = child("", |_| {
        common::each_here(|context| {
            let (mut theirs, ours) = sockets();
            let duplicate = ours.try_clone().expect("a duplicate");
            mem::forget(context.add_fd(&ours, on_readable(|| ())).expect("a handler"));
            settle(context);
            drop(ours);
            theirs.write_all(b"x").expect("room");
            let (event, calls) = (Rc::new(eventfd()), Count::default());
            let (own, count) = (event.clone(), calls.clone());
            let callback = move || {
                lower(&own);
                count.raise();
            };
            let _handler = context.add_owned_fd(event.clone(), on_readable(callback)).expect("a handler");
            for round in 1..=50 {
                raise(&event);
                context.run_until(|| calls.get() == round);
            }
            drop(duplicate);
        });
    });
    exit.assert_success();
}

/// Standard input may be anything.
#[test]
fn standard_input_from_a_file_or_from_dev_null_is_always_ready() {
    let exit = child("", |_| {
        let file = tempfile::tempfile().expect("a file");
        for from_file in [false, true] {
            if from_file {
                // SAFETY: both are open; the number stays standard input's.
                assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), 0) }, 0);
            }
            common::each_here(|context| {
                let input = std::io::stdin();
                let counted = Counted::new(context, &input);
                for turns in 1..=3 {
                    assert!(context.poll(true));
                    assert_eq!(counted.readable.get(), turns);
                }
                assert_eq!(counted.error.get(), 0);
                drop(counted);
                context.block_on(|| fd::wait_readable(&input)).expect("always ready");
                assert!(!context.poll(false));
            });
        }
    });
    exit.assert_success();
}

#[test]
fn an_owned_descriptor_is_open_for_as_long_as_its_handler_and_is_closed_then() {
    each(|context| {
        let (ours, mut theirs) = sockets();
        theirs.set_nonblocking(true).expect("a socket");
        let handler = context.add_owned_fd(ours, on_readable(|| ())).expect("a handler");
        settle(context);
        assert_eq!(theirs.read(&mut [0]).expect_err("it is open").kind(), ErrorKind::WouldBlock);
        drop(handler);
        context.poll(false);
        assert!(eventually(|| theirs.read(&mut [0]).is_ok_and(|bytes| bytes == 0)), "it is closed");
    });
}

// ---- transactions ---------------------------------------------------------------------------------------------------

#[test]
fn a_transaction_adds_and_removes_many_with_few_system_calls() {
    each(|context| {
        let events: Vec<_> = (0..1000).map(|_| eventfd()).collect();
        let calls = Count::default();
        let before = context.stats();
        let mut transaction = context.transaction();
        for event in &events {
            let count = calls.clone();
            transaction.add(event, on_readable(move || count.raise()));
        }
        let handlers = transaction.commit().expect("they can be watched");
        assert_eq!(handlers.len(), 1000);
        events.iter().for_each(raise);
        while calls.get() < 1000 {
            assert!(context.poll(true));
        }
        events.iter().for_each(lower);
        settle(context);
        let mut transaction = context.transaction();
        transaction.remove_all(handlers);
        transaction.commit().expect("nothing is added");
        let calls_before = calls.get();
        events.iter().for_each(raise);
        settle(context);
        assert_eq!(calls.get(), calls_before, "they are removed");
        let after = context.stats();
        let system_calls = after.control_calls - before.control_calls;
        println!("{system_calls} control calls for 1000 in and out");
        match context.monitor().kind() {
            MonitorKind::Epoll => assert!(system_calls >= 2000),
            _ => assert!(system_calls <= 60, "{system_calls}"),
        }
    });
}

#[test]
fn a_transaction_that_fails_adds_and_removes_nothing() {
    each(|context| {
        let (good, kept) = (eventfd(), eventfd());
        let bad = File::options().read(true).custom_flags(libc::O_PATH).open("/").expect("the root");
        let old = Count::default();
        let count = old.clone();
        let handler = context.add_fd(&kept, on_readable(move || count.raise())).expect("a handler");
        let calls = Count::default();
        let dropped = Count::default();
        let mut transaction = context.transaction();
        transaction.remove(handler);
        for ready in [&good, &good] {
            let (count, guard) = (calls.clone(), dropped.guard());
            transaction.add(
                ready,
                on_readable(move || {
                    let _guard = &guard;
                    count.raise();
                }),
            );
        }
        transaction.add(&bad, on_readable(|| unreachable!("it can't be watched")));
        raise(&good);
        raise(&kept);
        let error = transaction.commit().expect_err("one can't be watched");
        assert_eq!(error.error().raw_os_error(), Some(libc::EBADF), "{error}");
        assert_eq!(dropped.get(), 2, "the additions are gone");
        let handlers = error.into_kept();
        assert_eq!(handlers.len(), 1);
        context.poll(true);
        context.poll(true);
        assert_eq!(calls.get(), 0, "though they were ready");
        assert!(old.get() >= 1, "what was to be removed is still there");
        drop(handlers);
        settle(context);
    });
}

#[test]
fn descriptors_stay_open_and_watched_until_the_commit() {
    each(|context| {
        let (ours, mut theirs) = sockets();
        theirs.set_nonblocking(true).expect("a socket");
        let calls = Count::default();
        let count = calls.clone();
        let handler = context.add_owned_fd(ours, on_readable(move || count.raise())).expect("a handler");
        let mut transaction = context.transaction();
        transaction.remove(handler);
        theirs.write_all(b"x").expect("it is open");
        context.poll(true);
        assert_eq!(calls.get(), 1);
        assert!(transaction.commit().expect("nothing is added").is_empty());
        assert!(eventually(|| theirs.write(b"x").is_err()), "it is closed");
        settle(context);
        assert_eq!(calls.get(), 1);
    });
}

#[test]
fn an_ended_context_takes_no_handlers() {
    each(|_| {
        let context = common::context();
        let local = context.clone();
        let event = eventfd();
        let handler = context.add_fd(&event, on_readable(|| ())).expect("a handler");
        let transaction = context.transaction();
        drop(context);
        let refused = local.add_fd(&event, on_readable(|| ()));
        assert_eq!(refused.expect_err("it has ended").kind(), ErrorKind::NotConnected);
        handler.enable(Interest::Writable);
        drop(handler);
        let mut transaction = transaction;
        transaction.add(&event, on_readable(|| ()));
        assert_eq!(transaction.commit().expect_err("it has ended").error().kind(), ErrorKind::NotConnected);
    });
}

// ---- ends -----------------------------------------------------------------------------------------------------------

#[test]
fn a_context_that_ends_drops_the_callbacks_and_the_descriptors() {
    let exit = child("", |_| {
        common::each_here(|context| {
            let kind = context.monitor().kind();
            let context = AioContext::builder().monitor(kind).build().expect("a context");
            let open = || fs::read_dir("/proc/self/fd").expect("/proc is mounted").count();
            let before = open();
            let dropped = Count::default();
            let handlers: Vec<_> = (0..100)
                .map(|i| {
                    let guard = dropped.guard();
                    let event = eventfd();
                    if i % 2 == 0 {
                        raise(&event);
                    }
                    let callback = move || {
                        let _guard = &guard;
                    };
                    context.add_owned_fd(event, on_readable(callback)).expect("a handler")
                })
                .collect();
            context.poll(false);
            assert_eq!(open(), before + 100);
            drop(context);
            assert_eq!(dropped.get(), 100);
            assert!(open() < before, "also the context's own");
            drop(handlers);
        });
    });
    exit.assert_success();
}

/// A handler that is leaked harms nobody.
#[test]
fn a_leaked_handler_is_called_for_its_file_and_not_for_another() {
    each(|context| {
        let event = eventfd();
        let calls = Count::default();
        let count = calls.clone();
        // SAFETY: as long as the descriptor is open the number is its.
        let borrowed = unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) };
        mem::forget(context.add_fd(&borrowed, on_readable(move || count.raise())).expect("a handler"));
        raise(&event);
        context.poll(true);
        assert_eq!(calls.get(), 1);
        lower(&event);
        settle(context);
        let before = calls.get();
        drop(event);
        settle(context);
        if context.monitor().kind() != MonitorKind::Poll {
            assert_eq!(calls.get(), before);
        }
    });
}
