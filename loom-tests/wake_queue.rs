//! A home's run queue: the state word and the stack that carries the woken to their home.

use super::coroutine::{Coroutine, Phase};
use super::race;

models! {
    a_coroutine_waits_for_two_threads catches
        park_ignores_wake, park_not_acquired, park_not_released,
        coalesce_without_write, schedule_twice, wake_not_released, wake_not_acquired,
        turn_not_acquired,
        push_not_released, take_not_acquired;
}

/// A coroutine that parks in a loop until two other threads have done their part sees both parts, whether their wakes
/// come before the park, after it, or while the home takes the coroutine out of the queue; it never stands in the queue
/// twice; and its block is freed once, when no queue has it any more.
fn a_coroutine_waits_for_two_threads() {
    let coroutine = Coroutine::new(2);

    race::three(
        &coroutine,
        |coroutine| coroutine.fulfil(0),
        |coroutine| coroutine.fulfil(1),
        |coroutine| {
            coroutine.enter();
            coroutine.take_turn();
            coroutine.take_turn();
        },
    );

    // All wakes are in: if it isn't through, it is in the queue.
    coroutine.take_turn();
    assert_eq!(coroutine.phase(), Phase::Finished, "a wake was lost");
    assert_eq!(coroutine.times_freed(), 1);
}
