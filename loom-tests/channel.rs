//! The channel: messages that go from hand to hand, or through a buffer.

use std::rc::Rc;

use super::race;
use crate::park;
use crate::sync::raw::channel::{Patience, RawChannel, Refusal};

models! {
    messages_arrive_once_and_in_order catches admit_into_full_buffer, turn_not_acquired_by_waiter;
    a_receiver_is_unwound catches message_is_not_handed_on;
    a_sender_gives_up_or_is_sent_for catches sender_is_not_admitted;
    all_are_told_of_the_end catches close_tells_nobody;
}

const CAPACITY: usize = 1;

fn channel() -> Rc<RawChannel<Box<u32>>> {
    Rc::new(RawChannel::new(CAPACITY))
}

fn send(channel: &RawChannel<Box<u32>>, message: u32) {
    assert!(channel.send(Box::new(message), Patience::Forever).is_ok());
    assert!(channel.len() <= CAPACITY, "more in the channel than there is room for");
}

fn receive(channel: &RawChannel<Box<u32>>) -> Option<u32> {
    channel.receive(Patience::Forever).ok().map(|message| *message)
}

/// One sends more than there is room for; what two receive is all of it, in order for each.
fn messages_arrive_once_and_in_order() {
    let channel = channel();

    let (_, a, b) = race::three(
        &channel,
        |channel| (0..3).for_each(|n| send(channel, n)),
        |channel| [receive(channel), receive(channel)],
        receive,
    );

    assert!(a[0] < a[1]);
    let mut all = [a[0], a[1], b];
    all.sort();
    assert_eq!(all, [Some(0), Some(1), Some(2)]);
}

/// What was given to a receiver that is unwound goes to another one.
fn a_receiver_is_unwound() {
    let channel = channel();

    let (unwound, received, _) = race::three(
        &channel,
        |channel| park::cancelled(|| receive(channel)),
        |channel| channel.receive(Patience::Until(std::time::Instant::now())).ok().map(|message| *message),
        |channel| send(channel, 1),
    );

    let left = channel.receive(Patience::Never).ok().map(|message| *message);
    let all: Vec<_> = [unwound, received, left].into_iter().flatten().collect();
    assert_eq!(all, [1], "a message was lost, or came twice");
}

/// A sender that gives up gets its message back, unless it has been sent; another one goes on to wait.
fn a_sender_gives_up_or_is_sent_for() {
    let channel = channel();
    send(&channel, 0);

    let (result, _, received) = race::three(
        &channel,
        |channel| channel.send(Box::new(1), Patience::Until(std::time::Instant::now())),
        |channel| send(channel, 2),
        |channel| [receive(channel), receive(channel)],
    );

    assert_eq!(received[0], Some(0));
    let mut sent = vec![received[1]];
    sent.extend(channel.receive(Patience::Never).ok().map(|message| Some(*message)));
    sent.sort();
    match result {
        Ok(()) => assert_eq!(sent, [Some(1), Some(2)]),
        Err((message, refusal)) => {
            assert_eq!((*message, refusal), (1, Refusal::WouldWait));
            assert_eq!(sent, [Some(2)]);
        }
    }
}

/// Whoever waits when the channel is closed is told.
fn all_are_told_of_the_end() {
    let channel = channel();

    let (sent, received, _) = race::three(
        &channel,
        |channel| {
            let sent = (0..2).filter(|&n| channel.send(Box::new(n), Patience::Forever).is_ok());
            sent.count()
        },
        |channel| channel.receive(Patience::Forever).is_ok(),
        |channel| channel.close(),
    );

    let left = std::iter::from_fn(|| channel.receive(Patience::Never).ok()).count();
    assert_eq!(sent, usize::from(received) + left);
    assert_eq!(channel.receive(Patience::Forever).err(), Some(Refusal::Closed));
}
