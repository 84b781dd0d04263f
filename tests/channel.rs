//! Channels.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aioco::coroutine::Builder;
use aioco::sync::{RecvError, SendError, channel};
use aioco::{JoinHandle, aio, yield_now};
use common::{Count, Guard, LIMIT, assert_cancelled, context, message_of, rounds, scaled, settle, spawn, within};

#[test]
fn messages_come_in_order_and_senders_wait_for_room() {
    let context = context();
    let (sender, receiver) = channel(3);
    assert_eq!((sender.capacity(), receiver.capacity()), (3, 3));
    let sending = spawn(&context, move || {
        (0..10).for_each(|n| sender.send(n).expect("open"));
        sender.len()
    });
    settle(&context);
    assert!(!sending.is_finished());
    assert_eq!((receiver.len(), receiver.is_empty()), (3, false));
    let all = context.block_on(|| receiver.iter().collect::<Vec<_>>());
    assert_eq!(all, Vec::from_iter(0..10));
    sending.join().expect("no panic");
    assert!(receiver.is_closed() && receiver.is_empty());
}

#[test]
fn receivers_have_their_messages_in_the_order_in_which_they_came() {
    let context = context();
    let (sender, receiver) = channel(1);
    let all: Vec<_> = (0..3)
        .map(|_| {
            let receiver = receiver.clone();
            spawn(&context, move || receiver.recv().expect("open"))
        })
        .collect();
    settle(&context);
    for n in 0..3 {
        sender.send(n).expect("a receiver waits");
    }
    assert!(sender.is_empty(), "each message is a receiver's, who hasn't run");
    assert_eq!(receiver.try_recv(), Err(RecvError::Empty));
    let got: Vec<_> = all.into_iter().map(|handle| handle.join().expect("no panic")).collect();
    assert_eq!(got, [0, 1, 2]);
}

#[test]
fn tries_do_not_wait() {
    let (sender, receiver) = channel(1);
    assert_eq!(receiver.try_recv(), Err(RecvError::Empty));
    sender.try_send('a').expect("room");
    let error = sender.try_send('b').expect_err("full");
    assert_eq!((error, error.into_inner()), (SendError::Full('b'), 'b'));
    assert_eq!(receiver.try_recv(), Ok('a'));
    drop(sender);
    assert_eq!(receiver.try_recv(), Err(RecvError::Closed));
    assert_eq!(receiver.recv(), Err(RecvError::Closed));
}

#[test]
fn waits_end_at_their_deadlines() {
    within(LIMIT, || {
        let (sender, receiver) = channel(1);
        let short = Duration::from_millis(1);
        assert_eq!(receiver.recv_for(short), Err(RecvError::Empty));
        assert_eq!(receiver.recv_until(Instant::now()), Err(RecvError::Empty));
        sender.send(1).expect("room");
        assert_eq!(sender.send_for(2, short), Err(SendError::Full(2)));
        assert_eq!(sender.send_until(2, Instant::now()), Err(SendError::Full(2)));
        assert_eq!(receiver.recv_for(Duration::MAX), Ok(1));
        assert!(sender.send_for(3, short).is_ok());
        assert_eq!(receiver.recv_until(Instant::now()), Ok(3));
        assert!(receiver.is_empty());
    });
}

#[test]
fn a_closed_channel_can_be_emptied() {
    let context = context();
    let (sender, receiver) = channel(2);
    sender.send(1).expect("room");
    sender.send(2).expect("room");
    let waiting = {
        let sender = sender.clone();
        spawn(&context, move || sender.send(3))
    };
    settle(&context);
    assert!(receiver.close());
    assert!(!receiver.close() && !sender.close(), "once is enough");
    assert_eq!(waiting.join().expect("no panic"), Err(SendError::Closed(3)));
    assert_eq!(sender.send(4), Err(SendError::Closed(4)));
    assert_eq!((receiver.recv(), receiver.recv(), receiver.recv()), (Ok(1), Ok(2), Err(RecvError::Closed)));
}

#[test]
fn the_last_sender_closes_for_those_who_wait() {
    let context = context();
    let (sender, receiver) = channel::<u32>(1);
    let other = sender.clone();
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let receiver = receiver.clone();
            spawn(&context, move || receiver.recv())
        })
        .collect();
    settle(&context);
    drop(sender);
    settle(&context);
    assert!(waiting.iter().all(|handle| !handle.is_finished()));
    drop(other);
    for handle in waiting {
        assert_eq!(handle.join().expect("no panic"), Err(RecvError::Closed));
    }
}

#[test]
fn the_last_receiver_closes_and_drops_what_is_left() {
    let dropped = Count::default();
    let (sender, receiver) = channel::<Guard>(2);
    sender.send(dropped.guard()).expect("room");
    sender.send(dropped.guard()).expect("room");
    let other = receiver.clone();
    drop(receiver);
    assert_eq!(dropped.get(), 0);
    drop(other);
    assert_eq!(dropped.get(), 2);
    assert!(sender.send(dropped.guard()).is_err());
    assert_eq!(dropped.get(), 3);
}

#[test]
fn a_message_for_a_receiver_that_is_cancelled_is_the_next_ones() {
    let context = context();
    let (sender, receiver) = channel(1);
    let receive = || {
        let receiver = receiver.clone();
        spawn(&context, move || receiver.recv().expect("a message"))
    };
    let (first, second) = (receive(), receive());
    settle(&context);
    sender.send(1).expect("a receiver waits");
    first.cancel();
    settle(&context);
    assert_cancelled(first.join());
    assert_eq!(second.join().expect("no panic"), 1);

    // Nobody waits: it comes before those that were sent later.
    let third = receive();
    settle(&context);
    sender.send(2).expect("a receiver waits");
    sender.send(3).expect("room");
    third.cancel();
    settle(&context);
    assert_eq!(receiver.len(), 2, "one more than there is room for");
    assert_eq!(sender.try_send(4), Err(SendError::Full(4)));
    assert_eq!((receiver.recv(), receiver.recv()), (Ok(2), Ok(3)));
    assert!(sender.try_send(4).is_ok());
}

#[test]
fn a_sender_that_is_cancelled_takes_its_message_along() {
    let context = context();
    let dropped = Count::default();
    let (sender, receiver) = channel(1);
    sender.send(None).expect("room");
    let send = |message| {
        let sender = sender.clone();
        spawn(&context, move || sender.send(message).is_ok())
    };
    let (first, second) = (send(Some(dropped.guard())), send(None));
    settle(&context);
    first.cancel();
    settle(&context);
    assert_eq!(dropped.get(), 1);
    assert!(receiver.recv().expect("a message").is_none());
    assert!(second.join().expect("no panic"));
    assert!(receiver.recv().expect("a message").is_none());
    assert_eq!(receiver.try_recv().err(), Some(RecvError::Empty));
}

#[test]
fn a_closure_with_a_time_limit_leaves_the_channel() {
    within(LIMIT, || {
        let context = context();
        context.block_on(|| {
            let (sender, receiver) = channel(1);
            let short = Duration::from_millis(1);
            assert!(aio::timeout(short, || receiver.recv()).is_err());
            sender.send(1).expect("room");
            assert!(aio::timeout(short, || sender.send(2)).is_err());
            assert_eq!(receiver.recv(), Ok(1));
            assert_eq!(receiver.try_recv(), Err(RecvError::Empty));
        });
    });
}

#[test]
fn many_senders_and_receivers_on_threads_and_in_coroutines() {
    within(LIMIT, || {
        const SENDERS: u64 = 4;
        let each = scaled(40_000) as u64;
        let (sender, receiver) = channel(16);
        let (sum, count) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let send = move |sender: aioco::sync::Sender<u64>| (1..=each).for_each(|n| sender.send(n).expect("open"));
        let receive = {
            let (sum, count) = (sum.clone(), count.clone());
            move |receiver: aioco::sync::Receiver<u64>| {
                let mut last = [0; 2];
                for n in receiver.iter() {
                    last = [n, last[0]];
                    sum.fetch_add(n, Ordering::Relaxed);
                    count.fetch_add(1, Ordering::Relaxed);
                    if n % 1000 == 0 && aioco::in_coroutine() {
                        yield_now();
                    }
                }
                assert_ne!(last[0], 0);
            }
        };
        let mut threads = Vec::new();
        {
            let (sender, receiver) = (sender.clone(), receiver.clone());
            let receive = receive.clone();
            threads.push(thread::spawn(move || {
                let context = context();
                let mut all: Vec<JoinHandle<()>> = Vec::new();
                for _ in 0..SENDERS - 1 {
                    let sender = sender.clone();
                    all.push(spawn(&context, move || send(sender)));
                }
                drop(sender);
                for _ in 0..2 {
                    let (receiver, receive) = (receiver.clone(), receive.clone());
                    all.push(spawn(&context, move || receive(receiver)));
                }
                context.run_until(|| all.iter().all(JoinHandle::is_finished));
                all.into_iter().for_each(|handle| handle.join().expect("no panic"));
            }));
        }
        threads.push(thread::spawn(move || send(sender)));
        threads.push(thread::spawn(move || receive(receiver)));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(count.load(Ordering::Relaxed), SENDERS * each);
        assert_eq!(sum.load(Ordering::Relaxed), SENDERS * each * (each + 1) / 2);
    });
}

#[test]
fn a_deadline_at_the_moment_of_a_message_loses_nothing() {
    within(LIMIT, || {
        let (sender, receiver) = channel(1);
        for round in rounds(20_000) {
            let receiver_there = receiver.clone();
            let wait = Duration::from_micros(round as u64 % 60);
            let timed = thread::spawn(move || receiver_there.recv_for(wait));
            let end = Instant::now() + Duration::from_micros(40);
            while Instant::now() < end {}
            sender.send(round).expect("open");
            match timed.join().expect("no panic") {
                Ok(message) => assert_eq!(message, round),
                Err(_) => assert_eq!(receiver.try_recv(), Ok(round)),
            }
            assert!(receiver.is_empty());
        }
    });
}

/// Field report 38.
#[test]
fn a_hundred_thousand_receivers_are_told_of_the_end_on_small_stacks() {
    within(2 * LIMIT, || {
        let n = scaled(100_000);
        let context = context();
        let (sender, receiver) = channel::<u32>(1);
        let all: Vec<_> = (0..n)
            .map(|_| {
                let receiver = receiver.clone();
                let body = move || assert_eq!(receiver.recv(), Err(RecvError::Closed));
                context.spawn_with(Builder::new().stack_size(64 << 10), body).expect("a stack")
            })
            .collect();
        settle(&context);
        drop(sender);
        context.run_until(|| all.iter().all(JoinHandle::is_finished));
        all.into_iter().for_each(|handle| handle.join().expect("no panic"));
    });
}

#[test]
fn misuse_and_messages() {
    fn shared<T: Send + Sync>(_: &T) {}

    assert!(message_of(|| drop(channel::<()>(0))).contains("without room"));
    let (sender, receiver) = channel::<std::cell::Cell<u32>>(1);
    shared(&sender);
    shared(&receiver);
    assert!(format!("{sender:?} {receiver:?}").contains("capacity"));
    let errors = (SendError::Full(1).to_string(), SendError::Closed(1).to_string());
    assert_eq!(errors, (String::from("the channel is full"), String::from("the channel is closed")));
    assert!(RecvError::Empty.to_string().contains("empty") && RecvError::Closed.to_string().contains("closed"));
    assert_eq!(format!("{:?}", SendError::Full(channel::<()>(1))), "Full(..)");
}
