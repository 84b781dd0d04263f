//! Random scripts of sends, receives, cancels and deadlines, beside a model of a channel: a buffer and two queues.
//!
//! The actors are coroutines without a home. What is done outside of coroutines wakes them, but they run only when they
//! are entered. What an actor does while it runs wakes others that run right after it.

mod common;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use aioco::sync::{Receiver, RecvError, SendError, Sender, channel};
use aioco::{Coroutine, yield_now};
use common::coroutine;
use proptest::prelude::*;

const ACTORS: usize = 6;
const CAPACITY: usize = 2;

/// How long one with a deadline waits at least.
const SHORT: Duration = Duration::from_micros(200);

#[derive(Debug, Clone)]
enum Step {
    Send {
        actor: usize,
        timed: bool,
    },
    Receive {
        actor: usize,
        timed: bool,
    },
    /// By somebody who isn't an actor.
    TrySend,
    TryReceive,
    /// Unwinds one that waits, or that has had its turn and hasn't run.
    Cancel(usize),
    /// Lets a deadline pass.
    Expire(usize),
    /// Enters one, whether or not it has had its turn.
    Run(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let actor = 0..ACTORS;
    let timed = prop::bool::weighted(0.3);
    let step = prop_oneof![
        5 => (actor.clone(), timed).prop_map(|(actor, timed)| Step::Send { actor, timed }),
        5 => (actor.clone(), timed).prop_map(|(actor, timed)| Step::Receive { actor, timed }),
        2 => Just(Step::TrySend),
        2 => Just(Step::TryReceive),
        2 => actor.clone().prop_map(Step::Cancel),
        2 => actor.clone().prop_map(Step::Expire),
        3 => actor.prop_map(Step::Run),
    ];
    prop::collection::vec(step, 1..80)
}

/// How what an actor did has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Sent,
    Received(u32),
    Late,
}

/// What the model knows of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Waits { timed: bool },
    Due(Outcome),
}

/// What to do, until when.
#[derive(Clone, Copy)]
enum Command {
    Send(u32, Option<Instant>),
    Receive(Option<Instant>),
}

impl Command {
    fn carry_out(self, sender: &Sender<u32>, receiver: &Receiver<u32>) -> Outcome {
        match self {
            Self::Send(message, deadline) => {
                let result = match deadline {
                    Some(deadline) => sender.send_until(message, deadline),
                    None => sender.send(message),
                };
                match result {
                    Ok(()) => Outcome::Sent,
                    Err(refused) => {
                        assert_eq!(refused, SendError::Full(message));
                        Outcome::Late
                    }
                }
            }
            Self::Receive(deadline) => {
                let result = match deadline {
                    Some(deadline) => receiver.recv_until(deadline),
                    None => receiver.recv(),
                };
                match result {
                    Ok(message) => Outcome::Received(message),
                    Err(refused) => {
                        assert_eq!(refused, RecvError::Empty);
                        Outcome::Late
                    }
                }
            }
        }
    }
}

struct Actor {
    coroutine: Coroutine,
    command: Rc<Cell<Option<Command>>>,
    outcome: Rc<Cell<Option<Outcome>>>,
    deadline: Option<Instant>,
}

impl Actor {
    fn new(sender: &Sender<u32>, receiver: &Receiver<u32>) -> Self {
        let (command, outcome) = (Rc::new(Cell::new(None::<Command>)), Rc::new(Cell::new(None)));
        let coroutine = {
            let (sender, receiver) = (sender.clone(), receiver.clone());
            let (command, outcome) = (command.clone(), outcome.clone());
            coroutine(move || {
                loop {
                    if let Some(command) = command.take() {
                        outcome.set(Some(command.carry_out(&sender, &receiver)));
                    }
                    yield_now();
                }
            })
        };
        coroutine.enter();
        Self { coroutine, command, outcome, deadline: None }
    }
}

/// A channel in a few lines.
struct Model {
    actors: [State; ACTORS],
    buffer: VecDeque<u32>,
    /// Who waits with what.
    senders: VecDeque<(usize, u32)>,
    receivers: VecDeque<usize>,
}

impl Model {
    /// Gives a message to the first receiver, or to `store`.
    fn deliver(&mut self, message: u32, store: fn(&mut VecDeque<u32>, u32)) {
        match self.receivers.pop_front() {
            Some(receiver) => self.actors[receiver] = State::Due(Outcome::Received(message)),
            None => store(&mut self.buffer, message),
        }
    }

    fn send(&mut self, message: u32) -> bool {
        let has_room = self.buffer.len() < CAPACITY;
        if has_room {
            self.deliver(message, VecDeque::push_back);
        }
        has_room
    }

    fn receive(&mut self) -> Option<u32> {
        let message = self.buffer.pop_front()?;
        if self.buffer.len() < CAPACITY
            && let Some((sender, message)) = self.senders.pop_front()
        {
            self.actors[sender] = State::Due(Outcome::Sent);
            self.buffer.push_back(message);
        }
        Some(message)
    }

    fn leave(&mut self, actor: usize) {
        self.senders.retain(|&(other, _)| other != actor);
        self.receivers.retain(|&other| other != actor);
        if let State::Due(Outcome::Received(message)) = self.actors[actor] {
            self.deliver(message, VecDeque::push_front);
        }
        self.actors[actor] = State::Idle;
    }
}

struct Script {
    sender: Sender<u32>,
    receiver: Receiver<u32>,
    actors: Vec<Actor>,
    model: Model,
    /// The next message.
    next: u32,
}

impl Script {
    fn new() -> Self {
        let (sender, receiver) = channel(CAPACITY);
        let actors = (0..ACTORS).map(|_| Actor::new(&sender, &receiver)).collect();
        let model = Model {
            actors: [State::Idle; ACTORS],
            buffer: VecDeque::new(),
            senders: VecDeque::new(),
            receivers: VecDeque::new(),
        };
        Self { sender, receiver, actors, model, next: 0 }
    }

    fn message(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// An actor has run, or may have; what it did must have ended or not as the model says.
    fn has_run(&mut self, actor: usize) -> Result<(), TestCaseError> {
        let outcome = self.actors[actor].outcome.take();
        match self.model.actors[actor] {
            State::Due(due) => {
                prop_assert_eq!(outcome, Some(due));
                self.model.actors[actor] = State::Idle;
            }
            // The deadline may have passed before it came to wait, as happens on a loaded machine.
            State::Waits { timed: true } if outcome == Some(Outcome::Late) => self.model.leave(actor),
            State::Idle | State::Waits { .. } => prop_assert_eq!(outcome, None),
        }
        Ok(())
    }

    /// Enters an actor, with a command, when the model has been told; those it wakes run as well.
    fn run(&mut self, actor: usize, due_before: [bool; ACTORS]) -> Result<(), TestCaseError> {
        self.actors[actor].coroutine.enter();
        self.has_run(actor)?;
        self.woken_have_run(due_before)
    }

    fn due(&self) -> [bool; ACTORS] {
        self.model.actors.map(|state| matches!(state, State::Due(_)))
    }

    /// Those that an actor has woken have run after it; those that were due before still wait to be entered.
    fn woken_have_run(&mut self, due_before: [bool; ACTORS]) -> Result<(), TestCaseError> {
        for (actor, due_before) in due_before.into_iter().enumerate() {
            if !due_before && matches!(self.model.actors[actor], State::Due(_)) {
                self.has_run(actor)?;
            }
        }
        Ok(())
    }

    fn command(&mut self, actor: usize, timed: bool, command: impl FnOnce(Option<Instant>) -> Command) {
        let actor = &mut self.actors[actor];
        actor.deadline = timed.then(|| Instant::now() + SHORT);
        actor.command.set(Some(command(actor.deadline)));
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let due_before = self.due();
        let is_idle = |actor: usize| self.model.actors[actor] == State::Idle;
        match *step {
            Step::Send { actor, timed } if is_idle(actor) => {
                let message = self.message();
                self.model.actors[actor] = if self.model.send(message) {
                    State::Due(Outcome::Sent)
                } else {
                    self.model.senders.push_back((actor, message));
                    State::Waits { timed }
                };
                self.command(actor, timed, |deadline| Command::Send(message, deadline));
                self.run(actor, due_before)?;
            }
            Step::Receive { actor, timed } if is_idle(actor) => {
                self.model.actors[actor] = match self.model.receive() {
                    Some(message) => State::Due(Outcome::Received(message)),
                    None => {
                        self.model.receivers.push_back(actor);
                        State::Waits { timed }
                    }
                };
                self.command(actor, timed, Command::Receive);
                self.run(actor, due_before)?;
            }
            Step::TrySend => {
                let message = self.message();
                prop_assert_eq!(self.sender.try_send(message).is_ok(), self.model.send(message));
            }
            Step::TryReceive => prop_assert_eq!(self.receiver.try_recv().ok(), self.model.receive()),
            Step::Cancel(actor) if !is_idle(actor) => {
                self.model.leave(actor);
                self.actors[actor] = Actor::new(&self.sender, &self.receiver);
                self.woken_have_run(due_before)?;
            }
            Step::Expire(actor) if self.model.actors[actor] == (State::Waits { timed: true }) => {
                while self.actors[actor].deadline.is_some_and(|deadline| Instant::now() < deadline) {
                    thread::yield_now();
                }
                self.model.leave(actor);
                self.model.actors[actor] = State::Due(Outcome::Late);
                self.run(actor, due_before)?;
            }
            Step::Run(actor) => self.run(actor, due_before)?,
            _ => {}
        }
        prop_assert_eq!(self.receiver.len(), self.model.buffer.len());
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
    fn a_channel_does_as_its_model(script in steps()) {
        let mut all = Script::new();
        for step in &script {
            all.take(step)?;
        }
        for actor in 0..ACTORS {
            all.take(&Step::Run(actor))?;
        }
        let waits = all.model.actors.iter().filter(|&&state| state != State::Idle).count();
        prop_assert_eq!(waits, all.model.senders.len() + all.model.receivers.len());
    }
}
