//! Async code at the channel: waiters that are polled.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::time::Instant;

use super::race;
use crate::park;
use crate::sync::raw::channel::{Patience, RawChannel};

models! {
    messages_arrive_in_order catches sender_joins_without_looking, receiver_joins_without_looking;
    a_receiver_changes_its_waker catches later_waker_is_ignored, turn_not_acquired_by_waiter;
    a_receiver_is_dropped catches message_is_not_handed_on, unwound_waiter_keeps_its_turn;
    a_message_is_taken_back_or_sent catches taken_back_while_it_waits;
}

type Channel = RawChannel<Box<u32>>;

fn channel() -> Rc<Channel> {
    Rc::new(RawChannel::new(1))
}

/// Polls, and parks in between.
fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = park::waker();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => park::park(),
        }
    }
}

/// Wakes nobody.
struct Idle;

impl Wake for Idle {
    fn wake(self: Arc<Self>) {}
}

fn poll_once<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Arc::new(Idle).into()))
}

fn send(channel: &Channel, message: u32) {
    assert!(wait(channel.sending(Box::new(message))).is_ok());
}

fn receive(channel: &Channel) -> Option<u32> {
    wait(channel.receiving()).ok().map(|message| *message)
}

/// What is there, without waiting.
fn left(channel: &Channel) -> Option<u32> {
    channel.receive(Patience::Never).ok().map(|message| *message)
}

/// One sends more than there is room for, and the other receives all of it: both are woken when they have to wait.
fn messages_arrive_in_order() {
    let channel = channel();

    let (_, received) = race::two(
        &channel,
        |channel| (0..3).for_each(|n| send(channel, n)),
        |channel| [receive(channel), receive(channel), receive(channel)],
    );

    assert_eq!(received, [Some(0), Some(1), Some(2)]);
}

/// A receiver is polled with one waker and then with another, as one is that moves to another task: the latter is
/// woken.
fn a_receiver_changes_its_waker() {
    let channel = channel();

    let (received, _) = race::two(
        &channel,
        |channel| {
            let mut receiving = pin!(channel.receiving());
            match poll_once(receiving.as_mut()) {
                Poll::Ready(message) => message.ok(),
                Poll::Pending => wait(receiving).ok(),
            }
        },
        |channel| send(channel, 1),
    );

    assert_eq!(received.map(|message| *message), Some(1));
}

/// What was given to a receiver that is dropped goes to another one.
fn a_receiver_is_dropped() {
    let channel = channel();

    let (polled, received, _) = race::three(
        &channel,
        |channel| {
            let mut receiving = pin!(channel.receiving());
            let first = poll_once(receiving.as_mut());
            race::let_others_go_first();
            match first {
                Poll::Ready(message) => message.ok().map(|message| *message),
                Poll::Pending => None,
            }
        },
        |channel| channel.receive(Patience::Until(Instant::now())).ok().map(|message| *message),
        |channel| send(channel, 1),
    );

    let all: Vec<_> = [polled, received, left(&channel)].into_iter().flatten().collect();
    assert_eq!(all, [1], "a message was lost, or came twice");
}

/// A sender that gives up gets its message back, unless it has been sent; another one goes on to wait.
fn a_message_is_taken_back_or_sent() {
    let channel = channel();
    send(&channel, 0);

    let (taken_back, _, received) = race::three(
        &channel,
        |channel| {
            let mut sending = pin!(channel.sending(Box::new(1)));
            let first = poll_once(sending.as_mut());
            race::let_others_go_first();
            let taken_back = sending.as_mut().take_back();
            assert!(sending.take_back().is_none(), "it came back twice");
            assert!(first.is_pending() || taken_back.is_none(), "it was sent, and came back");
            taken_back.map(|message| *message)
        },
        |channel| send(channel, 2),
        |channel| [receive(channel), receive(channel)],
    );

    assert_eq!(received[0], Some(0));
    let mut all: Vec<_> = [taken_back, received[1], left(&channel)].into_iter().flatten().collect();
    all.sort();
    assert_eq!(all, [1, 2], "a message was lost, or came twice");
}
