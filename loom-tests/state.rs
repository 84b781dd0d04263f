//! The state word, where more happens than that a parked coroutine is woken and has its turn (see `wake_queue`).

use std::rc::Rc;

use super::coroutine::{Coroutine, Phase};
use super::race;
use crate::coroutine::state::{Park, State, Turn, Wake};
use crate::primitive::atomic::{AtomicBool, Ordering};

models! {
    a_queued_coroutine_is_entered_by_hand catches
        enter_not_acquired, turn_not_released, free_while_scheduled;
    a_queue_is_dropped_with_its_entries catches
        free_while_scheduled, retire_not_released, retire_not_acquired, unschedule_not_acquired, unschedule_not_released;
    a_homeless_coroutine_finds_a_home catches is_scheduled_not_acquired;
    a_turn_is_dropped_and_then_woken catches park_instead_not_released;
    a_stale_waker_wakes_nobody catches wake_any_generation;
    a_cancel_is_not_lost catches park_ignores_cancel;
    a_cancel_right_after_the_spawn_is_not_lost catches park_ignores_cancel;
    a_cancelled_coroutine_that_waits_for_its_own_is_woken catches park_ignores_wake;
}

/// A coroutine that is entered by hand while it stands in the queue leaves a stale entry there. It may park again, be
/// woken again, or end, before that entry comes out; no wake is lost, and its block isn't freed under the queue.
fn a_queued_coroutine_is_entered_by_hand() {
    let coroutine = Coroutine::new(2);

    race::three(
        &coroutine,
        |coroutine| coroutine.fulfil(0),
        |coroutine| coroutine.fulfil(1),
        |coroutine| {
            coroutine.enter();
            race::let_others_go_first();
            coroutine.enter();
            coroutine.take_turn();
        },
    );

    coroutine.take_turn();
    assert_eq!(coroutine.phase(), Phase::Finished, "a wake was lost");
    assert_eq!(coroutine.times_freed(), 1);
}

/// The wakers find a home that has ended, and drop what is in its queue. The coroutine, which is driven by its handle,
/// goes on; if it ends while a waker holds its entry, that waker frees the block.
fn a_queue_is_dropped_with_its_entries() {
    let coroutine = Coroutine::new(2);
    let wake = |condition| {
        move |coroutine: &Coroutine| {
            coroutine.fulfil(condition);
            coroutine.drop_turn();
        }
    };

    race::three(&coroutine, wake(0), wake(1), |coroutine| {
        coroutine.enter();
        race::let_others_go_first();
        coroutine.enter();
    });

    coroutine.enter();
    assert_eq!(coroutine.phase(), Phase::Finished);
    assert_eq!(coroutine.times_freed(), 1);
}

/// A coroutine that parked outside of any loop, where its wakes have nowhere to send it, parks again in a loop.
fn a_homeless_coroutine_finds_a_home() {
    let coroutine = Coroutine::new(2);
    coroutine.in_loop.set(false);

    race::three(
        &coroutine,
        |coroutine| coroutine.fulfil(0),
        |coroutine| coroutine.fulfil(1),
        |coroutine| {
            coroutine.enter();
            coroutine.in_loop.set(true);
            race::let_others_go_first();
            coroutine.enter();
            coroutine.take_turn();
        },
    );

    coroutine.enter();
    coroutine.take_turn();
    assert_eq!(coroutine.phase(), Phase::Finished);
    assert_eq!(coroutine.times_freed(), 1);
}

/// A coroutine that had yielded loses its turn to a queue that is dropped; a wake schedules it again.
fn a_turn_is_dropped_and_then_woken() {
    let coroutine = Coroutine::new(1);
    coroutine.start_and_yield();

    race::two(&coroutine, Coroutine::drop_turn, |coroutine| coroutine.fulfil(0));

    coroutine.enter();
    coroutine.take_turn();
    assert_eq!(coroutine.phase(), Phase::Finished);
    assert_eq!(coroutine.times_freed(), 1);
}

/// A waker of a coroutine that has ended leaves the block's next tenant alone.
fn a_stale_waker_wakes_nobody() {
    let state = Rc::new(State::new());

    race::two(
        &state,
        |state| {
            assert_ne!(state.wake(0), Wake::Schedule);
            assert_ne!(state.cancel(0), Wake::Schedule);
        },
        |state| {
            assert!(state.retire());
            race::let_others_go_first();
            assert_eq!(state.park(), Park::Suspend, "the next tenant was woken");
        },
    );

    assert_eq!(state.generation(), 1);
    assert!(!state.is_cancelled());
    assert_eq!(state.wake(1), Wake::Schedule);
}

/// A cancel unwinds a coroutine that waits for what never comes, whether it meets it before the park, in it, or in the
/// queue.
fn a_cancel_is_not_lost() {
    let coroutine = Coroutine::new(1);

    race::three(
        &coroutine,
        |coroutine| coroutine.act_on(coroutine.state.cancel(0)),
        |coroutine| coroutine.act_on(coroutine.state.wake(0)),
        |coroutine| {
            coroutine.enter();
            coroutine.take_turn();
        },
    );

    coroutine.take_turn();
    assert_eq!(coroutine.phase(), Phase::Unwound, "the cancel was lost");
    assert_eq!(coroutine.times_freed(), 1);
}

/// The same for a coroutine that is started by its home.
fn a_cancel_right_after_the_spawn_is_not_lost() {
    let coroutine = Coroutine::new(1);

    race::two(
        &coroutine,
        |coroutine| {
            coroutine.spawn();
            coroutine.act_on(coroutine.state.cancel(0));
        },
        |coroutine| {
            coroutine.take_turn();
            coroutine.take_turn();
        },
    );

    coroutine.take_turn();
    coroutine.take_turn();
    assert_eq!(coroutine.phase(), Phase::Unwound, "the cancel was lost");
    assert_eq!(coroutine.times_freed(), 1);
}

/// A coroutine that has been cancelled, and parks all the same until something of its own is back, is scheduled when it is, or
/// finds it there.
fn a_cancelled_coroutine_that_waits_for_its_own_is_woken() {
    struct Waiting {
        state: State,
        /// Relaxed: the wake brings it along.
        is_back: AtomicBool,
    }
    let waiting = Rc::new(Waiting { state: State::new(), is_back: AtomicBool::new(false) });
    let generation = waiting.state.generation();
    assert_eq!(waiting.state.cancel(generation), Wake::Remembered);
    assert_eq!(waiting.state.park_cancelled(), Park::Woken);

    let (wake, is_suspended) = race::two(
        &waiting,
        move |waiting| {
            waiting.is_back.store(true, Ordering::Relaxed);
            waiting.state.wake(generation)
        },
        |waiting| {
            while !waiting.is_back.load(Ordering::Relaxed) {
                if waiting.state.park_cancelled() == Park::Suspend {
                    return true;
                }
            }
            false
        },
    );

    assert_eq!(wake == Wake::Schedule, is_suspended, "it waits for ever");
    if is_suspended {
        assert_eq!(waiting.state.take_turn(true), Turn::Unwind);
    }
}
