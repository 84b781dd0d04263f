//! Random scripts of locks, unlocks, cancels and deadlines, beside models of a few lines that say who is in and who
//! waits.
//!
//! The actors are coroutines without a home. What is done outside of coroutines wakes them, but they run only when they
//! are entered; so there is a time between a turn and its use, in which anything may happen. What an actor does while it
//! runs (it gives up, or is unwound) wakes others that run right after it.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use aioco::sync::{Permits, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, WaitQueue};
use aioco::{Coroutine, yield_now};
use common::coroutine;
use proptest::prelude::*;

const ACTORS: usize = 5;
const PERMITS: usize = 4;

/// How long one with a deadline waits at least.
const SHORT: Duration = Duration::from_micros(200);

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(debug_assertions) { 200 } else { 1000 },
        failure_persistence: None,
        ..Default::default()
    }
}

// ---- rwlock and semaphore -------------------------------------------------------------------------------------------

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    Read,
    Write,
    Some(usize),
}

#[derive(Debug, Clone)]
enum Step {
    /// Locks, perhaps with a deadline.
    Lock(usize, Want, bool),
    Unlock(usize),
    Downgrade(usize),
    Upgrade(usize, bool),
    TryUpgrade(usize),
    /// Unwinds one that waits, or that has its turn and hasn't run.
    Cancel(usize),
    /// Lets a deadline pass.
    Expire(usize),
    /// Enters one, whether or not it has its turn.
    Run(usize),
}

fn steps(wants: impl Strategy<Value = Want> + Clone + 'static) -> impl Strategy<Value = Vec<Step>> {
    let actor = 0..ACTORS;
    let step = prop_oneof![
        5 => (actor.clone(), wants, prop::bool::weighted(0.3)).prop_map(|(actor, want, timed)| Step::Lock(actor, want, timed)),
        4 => actor.clone().prop_map(Step::Unlock),
        1 => actor.clone().prop_map(Step::Downgrade),
        1 => (actor.clone(), any::<bool>()).prop_map(|(actor, timed)| Step::Upgrade(actor, timed)),
        1 => actor.clone().prop_map(Step::TryUpgrade),
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
    Waits {
        want: Want,
        timed: bool,
    },
    /// It is in, and hasn't run since.
    LetIn(Want),
    Holds(Want),
}

struct Model {
    actors: [State; ACTORS],
    queue: VecDeque<usize>,
}

impl Model {
    fn new() -> Self {
        Self { actors: [State::Idle; ACTORS], queue: VecDeque::new() }
    }

    fn fits(&self, want: Want) -> bool {
        let mut inside = self.actors.iter().filter_map(|state| match state {
            State::LetIn(want) | State::Holds(want) => Some(*want),
            State::Idle | State::Waits { .. } => None,
        });
        match want {
            Want::Read => inside.all(|other| other != Want::Write),
            Want::Write => inside.next().is_none(),
            Want::Some(count) => {
                let taken: usize = inside.map(|other| if let Want::Some(count) = other { count } else { 0 }).sum();
                taken + count <= PERMITS
            }
        }
    }

    /// Lets in who is first in the queue, as many as fit; returns whom.
    fn let_in(&mut self) -> Vec<usize> {
        let mut all = Vec::new();
        while let Some(&first) = self.queue.front()
            && let State::Waits { want, .. } = self.actors[first]
            && self.fits(want)
        {
            self.queue.pop_front();
            self.actors[first] = State::LetIn(want);
            all.push(first);
        }
        all
    }

    fn lock(&mut self, actor: usize, want: Want, timed: bool) {
        if self.queue.is_empty() && self.fits(want) {
            self.actors[actor] = State::Holds(want);
        } else {
            self.actors[actor] = State::Waits { want, timed };
            self.queue.push_back(actor);
        }
    }

    /// Those that were let in by an actor that ran run after it.
    fn let_in_and_run(&mut self) {
        for actor in self.let_in() {
            self.run(actor);
        }
    }

    fn run(&mut self, actor: usize) {
        if let State::LetIn(want) = self.actors[actor] {
            self.actors[actor] = State::Holds(want);
        }
    }

    fn leave(&mut self, actor: usize) {
        self.actors[actor] = State::Idle;
        self.queue.retain(|&other| other != actor);
    }
}

#[derive(Clone, Copy)]
enum Lock {
    Rw(&'static RwLock<()>),
    Semaphore(&'static Semaphore),
}

enum Held {
    Read(RwLockReadGuard<'static, ()>),
    Write(RwLockWriteGuard<'static, ()>),
    Permits(Permits<'static>),
}

impl Held {
    fn want(&self) -> Want {
        match self {
            Self::Read(_) => Want::Read,
            Self::Write(_) => Want::Write,
            Self::Permits(permits) => Want::Some(permits.count()),
        }
    }
}

impl Lock {
    fn lock(self, want: Want, deadline: Option<Instant>) -> Option<Held> {
        match (self, want, deadline) {
            (Self::Rw(lock), Want::Read, None) => Some(Held::Read(lock.read())),
            (Self::Rw(lock), Want::Read, Some(deadline)) => lock.try_read_until(deadline).map(Held::Read),
            (Self::Rw(lock), _, None) => Some(Held::Write(lock.write())),
            (Self::Rw(lock), _, Some(deadline)) => lock.try_write_until(deadline).map(Held::Write),
            (Self::Semaphore(semaphore), Want::Some(count), None) => Some(Held::Permits(semaphore.acquire(count))),
            (Self::Semaphore(semaphore), Want::Some(count), Some(deadline)) => {
                semaphore.try_acquire_until(count, deadline).map(Held::Permits)
            }
            (Self::Semaphore(_), _, _) => unreachable!("a semaphore has permits"),
        }
    }
}

enum Command {
    Lock(Want, Option<Instant>),
    Upgrade(Option<Instant>),
}

/// A coroutine that does as it is told. What it holds is where the script can drop it, outside of coroutines.
struct Actor {
    coroutine: Coroutine,
    command: Rc<Cell<Option<Command>>>,
    /// Whether it has done what it was told last.
    is_done: Rc<Cell<bool>>,
    held: Rc<RefCell<Option<Held>>>,
    deadline: Option<Instant>,
}

impl Actor {
    fn new(lock: Lock) -> Self {
        let (command, held) = (Rc::new(Cell::new(None)), Rc::new(RefCell::new(None)));
        let is_done = Rc::new(Cell::new(true));
        let coroutine = {
            let (command, held, is_done) = (command.clone(), held.clone(), is_done.clone());
            coroutine(move || {
                loop {
                    let now_held = match command.take() {
                        Some(Command::Lock(want, deadline)) => lock.lock(want, deadline),
                        Some(Command::Upgrade(deadline)) => {
                            let Some(Held::Read(guard)) = held.take() else { unreachable!("a reader upgrades") };
                            match deadline {
                                Some(deadline) => RwLockReadGuard::upgrade_until(guard, deadline).map(Held::Write),
                                None => Some(Held::Write(RwLockReadGuard::upgrade(guard))),
                            }
                        }
                        None => held.take(),
                    };
                    held.replace(now_held);
                    is_done.set(true);
                    yield_now();
                }
            })
        };
        coroutine.enter();
        Self { coroutine, command, is_done, held, deadline: None }
    }

    fn tell(&mut self, timed: bool, command: impl FnOnce(Option<Instant>) -> Command) {
        self.deadline = timed.then(|| Instant::now() + SHORT);
        self.command.set(Some(command(self.deadline)));
        self.is_done.set(false);
        self.coroutine.enter();
    }

    /// Whether its deadline had passed before it came to wait, as happens on a loaded machine.
    fn was_late(&self) -> bool {
        self.deadline.is_some() && self.is_done.get() && self.held.borrow().is_none()
    }
}

/// Runs a script against the lock and the model; then unlocks and runs all until nothing is left.
fn check(lock: Lock, script: Vec<Step>) -> Result<(), TestCaseError> {
    let mut actors: Vec<_> = (0..ACTORS).map(|_| Actor::new(lock)).collect();
    let mut model = Model::new();
    for step in script {
        take(&step, lock, &mut actors, &mut model);
        agree(&actors, &model, &format!("{step:?}"))?;
    }
    for _ in 0..=ACTORS {
        for actor in 0..ACTORS {
            take(&Step::Run(actor), lock, &mut actors, &mut model);
            take(&Step::Expire(actor), lock, &mut actors, &mut model);
            take(&Step::Unlock(actor), lock, &mut actors, &mut model);
        }
    }
    agree(&actors, &model, "the end")?;
    prop_assert_eq!(model.actors, [State::Idle; ACTORS], "somebody waits for ever");
    match lock {
        Lock::Rw(lock) => prop_assert!(lock.try_write().is_some()),
        Lock::Semaphore(semaphore) => prop_assert_eq!(semaphore.available(), PERMITS),
    }
    Ok(())
}

fn agree(actors: &[Actor], model: &Model, when: &str) -> Result<(), TestCaseError> {
    for (number, actor) in actors.iter().enumerate() {
        let held = actor.held.borrow().as_ref().map(Held::want);
        let expected = if let State::Holds(want) = model.actors[number] { Some(want) } else { None };
        prop_assert_eq!(held, expected, "actor {} after {}", number, when);
    }
    Ok(())
}

fn take(step: &Step, lock: Lock, actors: &mut [Actor], model: &mut Model) {
    match *step {
        Step::Lock(actor, want, timed) if model.actors[actor] == State::Idle => {
            model.lock(actor, want, timed);
            actors[actor].tell(timed, |deadline| Command::Lock(want, deadline));
            if actors[actor].was_late() {
                model.leave(actor);
                model.let_in_and_run();
            }
        }
        Step::Unlock(actor) if matches!(model.actors[actor], State::Holds(_)) => {
            model.leave(actor);
            model.let_in();
            let held = actors[actor].held.take();
            drop(held);
        }
        Step::Downgrade(actor) if model.actors[actor] == State::Holds(Want::Write) => {
            model.actors[actor] = State::Holds(Want::Read);
            model.let_in();
            let Some(Held::Write(guard)) = actors[actor].held.take() else { unreachable!("it holds it") };
            let guard = RwLockWriteGuard::downgrade(guard);
            actors[actor].held.replace(Some(Held::Read(guard)));
        }
        Step::TryUpgrade(actor) if model.actors[actor] == State::Holds(Want::Read) => {
            model.actors[actor] = State::Idle;
            let upgrades = model.queue.is_empty() && model.fits(Want::Write);
            model.actors[actor] = State::Holds(if upgrades { Want::Write } else { Want::Read });
            let Some(Held::Read(guard)) = actors[actor].held.take() else { unreachable!("it holds it") };
            let held = RwLockReadGuard::try_upgrade(guard).map_or_else(Held::Read, Held::Write);
            actors[actor].held.replace(Some(held));
        }
        Step::Upgrade(actor, timed) if model.actors[actor] == State::Holds(Want::Read) => {
            model.actors[actor] = State::Idle;
            model.lock(actor, Want::Write, timed);
            model.let_in_and_run();
            actors[actor].tell(timed, Command::Upgrade);
            if actors[actor].was_late() {
                model.leave(actor);
                model.let_in_and_run();
            }
        }
        Step::Cancel(actor) if matches!(model.actors[actor], State::Waits { .. } | State::LetIn(_)) => {
            model.leave(actor);
            model.let_in_and_run();
            actors[actor] = Actor::new(lock);
        }
        Step::Expire(actor) if matches!(model.actors[actor], State::Waits { timed: true, .. }) => {
            model.leave(actor);
            model.let_in_and_run();
            while actors[actor].deadline.is_some_and(|deadline| Instant::now() < deadline) {
                thread::yield_now();
            }
            actors[actor].coroutine.enter();
        }
        Step::Run(actor) if !matches!(model.actors[actor], State::Waits { timed: true, .. }) => {
            model.run(actor);
            actors[actor].coroutine.enter();
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn an_rwlock_does_as_its_model(script in steps(prop_oneof![2 => Just(Want::Read), 1 => Just(Want::Write)])) {
        check(Lock::Rw(Box::leak(Box::default())), script)?;
    }

    /// Writers only: as a mutex.
    #[test]
    fn a_mutex_does_as_its_model(script in steps(Just(Want::Write))) {
        check(Lock::Rw(Box::leak(Box::default())), script)?;
    }

    #[test]
    fn a_semaphore_does_as_its_model(script in steps((1..=PERMITS).prop_map(Want::Some))) {
        check(Lock::Semaphore(Box::leak(Box::new(Semaphore::new(PERMITS)))), script)?;
    }
}

// ---- wait queue -----------------------------------------------------------------------------------------------------

#[derive(Debug, Clone)]
enum Move {
    Wait { actor: usize, front: bool, timed: bool },
    WakeOne,
    WakeAll,
    Cancel(usize),
    Expire(usize),
    Run(usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let actor = 0..ACTORS;
    let one = prop_oneof![
        5 => (actor.clone(), any::<bool>(), prop::bool::weighted(0.3))
            .prop_map(|(actor, front, timed)| Move::Wait { actor, front, timed: timed && !front }),
        3 => Just(Move::WakeOne),
        1 => Just(Move::WakeAll),
        2 => actor.clone().prop_map(Move::Cancel),
        2 => actor.clone().prop_map(Move::Expire),
        3 => actor.prop_map(Move::Run),
    ];
    prop::collection::vec(one, 1..80)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sleeper {
    Idle,
    Waits { timed: bool },
    Woken { alone: bool },
}

/// What to do: join at the front or not, with a deadline or not.
#[derive(Clone, Copy)]
struct Wait {
    front: bool,
    deadline: Option<Instant>,
}

struct Waiter {
    coroutine: Coroutine,
    command: Rc<Cell<Option<Wait>>>,
    /// How the last wait ended.
    woken: Rc<Cell<Option<bool>>>,
    deadline: Option<Instant>,
}

impl Waiter {
    fn new(queue: &Rc<WaitQueue>) -> Self {
        let (command, woken) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
        let coroutine = {
            let (queue, command, woken) = (queue.clone(), command.clone(), woken.clone());
            coroutine(move || {
                loop {
                    match command.take() {
                        Some(Wait { deadline: Some(deadline), .. }) => {
                            woken.set(Some(queue.wait_until((), deadline).1));
                        }
                        Some(Wait { front: true, .. }) => {
                            queue.wait_at_front(());
                            woken.set(Some(true));
                        }
                        Some(Wait { front: false, .. }) => {
                            queue.wait(());
                            woken.set(Some(true));
                        }
                        None => {}
                    }
                    yield_now();
                }
            })
        };
        coroutine.enter();
        Self { coroutine, command, woken, deadline: None }
    }
}

struct Script {
    queue: Rc<WaitQueue>,
    waiters: Vec<Waiter>,
    model: [Sleeper; ACTORS],
    order: VecDeque<usize>,
}

impl Script {
    /// Wakes the first in the model.
    fn wake(&mut self, alone: bool) -> Option<usize> {
        let first = self.order.pop_front()?;
        self.model[first] = Sleeper::Woken { alone };
        Some(first)
    }

    /// Runs a waiter; it must be woken or not as the model says.
    fn run(&mut self, actor: usize) -> Result<(), TestCaseError> {
        self.waiters[actor].coroutine.enter();
        self.ends(actor)
    }

    fn ends(&mut self, actor: usize) -> Result<(), TestCaseError> {
        let woken = self.waiters[actor].woken.take();
        match self.model[actor] {
            Sleeper::Woken { .. } => {
                prop_assert_eq!(woken, Some(true));
                self.model[actor] = Sleeper::Idle;
            }
            Sleeper::Idle | Sleeper::Waits { .. } => prop_assert_eq!(woken, None),
        }
        Ok(())
    }

    fn take(&mut self, one: &Move) -> Result<(), TestCaseError> {
        match *one {
            Move::Wait { actor, front, timed } if self.model[actor] == Sleeper::Idle => {
                self.model[actor] = Sleeper::Waits { timed };
                if front {
                    self.order.push_front(actor)
                } else {
                    self.order.push_back(actor)
                }
                let waiter = &mut self.waiters[actor];
                waiter.deadline = timed.then(|| Instant::now() + SHORT);
                waiter.command.set(Some(Wait { front, deadline: waiter.deadline }));
                waiter.coroutine.enter();
                match waiter.woken.take() {
                    // The deadline had passed before it came to wait, as happens on a loaded machine.
                    Some(false) if timed => {
                        self.order.retain(|&other| other != actor);
                        self.model[actor] = Sleeper::Idle;
                    }
                    woken => prop_assert_eq!(woken, None),
                }
            }
            Move::WakeOne => {
                let woken = self.wake(true);
                prop_assert_eq!(self.queue.wake_one(), woken.is_some());
            }
            Move::WakeAll => {
                while self.wake(false).is_some() {}
                self.queue.wake_all();
            }
            Move::Cancel(actor) if self.model[actor] != Sleeper::Idle => {
                let next = match self.model[actor] {
                    Sleeper::Woken { alone: true } => self.wake(true),
                    _ => None,
                };
                self.order.retain(|&other| other != actor);
                self.model[actor] = Sleeper::Idle;
                self.waiters[actor] = Waiter::new(&self.queue);
                if let Some(next) = next {
                    // Woken by the one that was unwound, it ran after it.
                    self.ends(next)?;
                }
            }
            Move::Expire(actor) => {
                let waiter = &self.waiters[actor];
                if let Sleeper::Waits { timed: true } = self.model[actor] {
                    while waiter.deadline.is_some_and(|deadline| Instant::now() < deadline) {
                        thread::yield_now();
                    }
                    waiter.coroutine.enter();
                    prop_assert_eq!(waiter.woken.take(), Some(false));
                    self.order.retain(|&other| other != actor);
                    self.model[actor] = Sleeper::Idle;
                }
            }
            Move::Run(actor) if self.model[actor] != (Sleeper::Waits { timed: true }) => self.run(actor)?,
            _ => {}
        }
        prop_assert_eq!(self.queue.is_empty(), self.order.is_empty());
        Ok(())
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_wait_queue_does_as_its_model(script in moves()) {
        let queue = Rc::new(WaitQueue::new());
        let waiters = (0..ACTORS).map(|_| Waiter::new(&queue)).collect();
        let mut all = Script { queue, waiters, model: [Sleeper::Idle; ACTORS], order: VecDeque::new() };
        for one in &script {
            all.take(one)?;
        }
        all.take(&Move::WakeAll)?;
        for actor in 0..ACTORS {
            all.run(actor)?;
        }
        prop_assert_eq!(all.model, [Sleeper::Idle; ACTORS]);
    }
}
