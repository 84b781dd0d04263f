//! Random scripts of waits, cancels and deadlines for what counts (thresholds and barriers), beside models of a few lines
//! that say who waits and who is due.
//!
//! The actors are coroutines without a home. What is done outside of coroutines wakes them, but they run only when they
//! are entered. What an actor does while it runs wakes others that run right after it.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use aioco::sync::{Barrier, Threshold};
use aioco::{Coroutine, yield_now};
use common::coroutine;
use proptest::prelude::*;

const ACTORS: usize = 5;
const PARTIES: usize = 3;

/// How long one with a deadline waits at least.
const SHORT: Duration = Duration::from_micros(200);

#[derive(Debug, Clone)]
enum Step {
    /// Waits until the count is so much higher than it is (threshold), or for the others (barrier).
    Wait { actor: usize, more: u64, timed: bool },
    /// The count goes up (threshold).
    Advance(u64),
    /// Unwinds one that waits, or that is due and hasn't run.
    Cancel(usize),
    /// Lets a deadline pass.
    Expire(usize),
    /// Enters one, whether or not it is due.
    Run(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let actor = 0..ACTORS;
    let step = prop_oneof![
        5 => (actor.clone(), 0_u64..8, prop::bool::weighted(0.3))
            .prop_map(|(actor, more, timed)| Step::Wait { actor, more, timed }),
        3 => (0_u64..4).prop_map(Step::Advance),
        2 => actor.clone().prop_map(Step::Cancel),
        2 => actor.clone().prop_map(Step::Expire),
        3 => actor.prop_map(Step::Run),
    ];
    prop::collection::vec(step, 1..80)
}

/// What the model knows of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Waits { number: u64, timed: bool },
    Due,
}

/// Waits for a number, perhaps with a deadline; returns whether it has come to that.
type Wait = Rc<dyn Fn(u64, Option<Instant>) -> bool>;

/// What to wait for, until when.
type Command = (u64, Option<Instant>);

struct Actor {
    coroutine: Coroutine,
    command: Rc<Cell<Option<Command>>>,
    /// How the last wait ended.
    outcome: Rc<Cell<Option<bool>>>,
    deadline: Option<Instant>,
}

impl Actor {
    fn new(wait: &Wait) -> Self {
        let (command, outcome) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
        let coroutine = {
            let (wait, command, outcome) = (wait.clone(), command.clone(), outcome.clone());
            coroutine(move || {
                loop {
                    if let Some((number, deadline)) = command.take() {
                        outcome.set(Some(wait(number, deadline)));
                    }
                    yield_now();
                }
            })
        };
        coroutine.enter();
        Self { coroutine, command, outcome, deadline: None }
    }
}

struct Script {
    wait: Wait,
    actors: Vec<Actor>,
    model: [State; ACTORS],
}

impl Script {
    fn new(wait: Wait) -> Self {
        let actors = (0..ACTORS).map(|_| Actor::new(&wait)).collect();
        Self { wait, actors, model: [State::Idle; ACTORS] }
    }

    /// Those who wait, for numbers that the model says are due.
    fn fall_due(&mut self, is_due: impl Fn(u64) -> bool) {
        for state in &mut self.model {
            if let State::Waits { number, .. } = *state
                && is_due(number)
            {
                *state = State::Due;
            }
        }
    }

    fn waiting(&self) -> usize {
        self.model.iter().filter(|state| matches!(state, State::Waits { .. })).count()
    }

    /// An actor has run; its wait must have ended or not as the model says.
    fn has_run(&mut self, actor: usize) -> Result<(), TestCaseError> {
        let outcome = self.actors[actor].outcome.take();
        match self.model[actor] {
            State::Due => {
                prop_assert_eq!(outcome, Some(true));
                self.model[actor] = State::Idle;
            }
            // The deadline may have passed before it came to wait, as happens on a loaded machine.
            State::Waits { timed: true, .. } if outcome == Some(false) => self.model[actor] = State::Idle,
            State::Idle | State::Waits { .. } => prop_assert_eq!(outcome, None),
        }
        Ok(())
    }

    /// An idle one begins to wait, if it isn't due at once.
    fn begin(&mut self, actor: usize, number: u64, timed: bool) {
        let actor = &mut self.actors[actor];
        actor.deadline = timed.then(|| Instant::now() + SHORT);
        actor.command.set(Some((number, actor.deadline)));
        actor.coroutine.enter();
    }

    /// What is the same for all that can be waited for.
    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Cancel(actor) if self.model[actor] != State::Idle => {
                self.model[actor] = State::Idle;
                self.actors[actor] = Actor::new(&self.wait);
            }
            Step::Expire(actor) => {
                if let State::Waits { timed: true, .. } = self.model[actor] {
                    let Actor { coroutine, deadline, outcome, .. } = &self.actors[actor];
                    while deadline.is_some_and(|deadline| Instant::now() < deadline) {
                        thread::yield_now();
                    }
                    coroutine.enter();
                    prop_assert_eq!(outcome.take(), Some(false));
                    self.model[actor] = State::Idle;
                }
            }
            Step::Run(actor) => {
                self.actors[actor].coroutine.enter();
                self.has_run(actor)?;
            }
            Step::Cancel(_) | Step::Wait { .. } | Step::Advance(_) => {}
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 200 } else { 1000 },
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn a_threshold_does_as_its_model(script in steps()) {
        let threshold = Rc::new(Threshold::new());
        let mut all = Script::new({
            let threshold = threshold.clone();
            Rc::new(move |number, deadline| match deadline {
                Some(deadline) => threshold.wait_until(number, deadline),
                None => {
                    threshold.wait(number);
                    true
                }
            })
        });
        let mut count = 0;
        for step in script.iter().chain([&Step::Advance(8)]) {
            match *step {
                Step::Wait { actor, more, timed } if all.model[actor] == State::Idle => {
                    let number = count + more;
                    all.begin(actor, number, timed);
                    all.model[actor] = if more == 0 { State::Due } else { State::Waits { number, timed } };
                    all.has_run(actor)?;
                }
                Step::Advance(by) => {
                    threshold.advance(by);
                    count += by;
                    all.fall_due(|number| number <= count);
                }
                _ => all.take(step)?,
            }
            prop_assert_eq!(threshold.count(), count);
        }
        for actor in 0..ACTORS {
            all.take(&Step::Run(actor))?;
        }
        prop_assert_eq!(all.model, [State::Idle; ACTORS]);
    }

    #[test]
    fn a_barrier_does_as_its_model(script in steps()) {
        let barrier = Rc::new(Barrier::new(PARTIES));
        let leaders = Rc::new(Cell::new(0));
        let mut all = Script::new({
            let (barrier, leaders) = (barrier.clone(), leaders.clone());
            Rc::new(move |_, deadline| {
                let result = match deadline {
                    Some(deadline) => barrier.wait_until(deadline),
                    None => Some(barrier.wait()),
                };
                leaders.set(leaders.get() + u32::from(result == Some(true)));
                result.is_some()
            })
        });
        let mut rounds = 0;
        for step in &script {
            match *step {
                Step::Wait { actor, timed, .. } if all.model[actor] == State::Idle => {
                    all.begin(actor, 0, timed);
                    all.model[actor] = State::Waits { number: 0, timed };
                    if all.waiting() == PARTIES {
                        rounds += 1;
                        all.fall_due(|_| true);
                    }
                    for actor in 0..ACTORS {
                        all.has_run(actor)?;
                    }
                }
                _ => all.take(step)?,
            }
            prop_assert_eq!(leaders.get(), rounds);
        }
    }
}
