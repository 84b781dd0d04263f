//! The pool: batches on the release stack, and each thread's own lists.
#![allow(unsafe_code)] // # Safety: items live as long as the model; who takes one owns it, which is what is checked.

use std::ptr::NonNull;
use std::rc::Rc;

use super::race;
use crate::pool::{BATCH, Batch, Local, PoolLinks, Pooled, Release};
use crate::primitive::UnsafeCell;

models! {
    a_taker_reuses_what_another_takes catches push_not_released, take_not_acquired, put_back_not_released, put_back_once;
    a_thread_exits_while_another_takes catches push_not_released, take_not_acquired;
    batches_are_counted catches count_after_push;
}

#[derive(Debug)]
struct Item {
    links: PoolLinks<Item>,
    name: char,
    /// What an owner may write: two owners at a time would be a race that loom sees.
    used: UnsafeCell<u32>,
}

// SAFETY: the links are a field.
unsafe impl Pooled for Item {
    fn links(&self) -> &PoolLinks<Self> {
        &self.links
    }
}

struct Shared {
    release: Release<Item>,
    items: Vec<Item>,
}

impl Shared {
    /// A release stack with that cap, and items that are outside of it.
    fn new(cap: usize, names: &str) -> Rc<Self> {
        let item = |name| Item { links: PoolLinks::new(), name, used: UnsafeCell::new(0) };
        Rc::new(Self { release: Release::new(cap), items: names.chars().map(item).collect() })
    }

    /// Makes a batch of some of the items, which are the caller's.
    fn batch(&self, names: &str) -> Batch<Item> {
        let mut batch = Batch::new();
        for item in self.items.iter().filter(|item| names.contains(item.name)) {
            touch(item.into());
            // SAFETY: it lives as long as the stack, and the caller gives it up.
            unsafe { batch.push(item.into()) };
        }
        batch
    }

    /// Takes an item.
    fn take(&self, local: &mut Local<Item>) -> Option<NonNull<Item>> {
        let item = local.take(&self.release)?;
        touch(item);
        Some(item)
    }

    /// Gives an item back; returns the names of what the pool had no room for.
    fn give(&self, local: &mut Local<Item>, item: NonNull<Item>) -> String {
        touch(item);
        // SAFETY: it lives as long as the stack, and the caller gives it up.
        unsafe { local.give(item, &self.release) }.map(names).unwrap_or_default()
    }

    /// Ends a thread's part of the pool; returns the names of what the stack had no room for.
    fn exit(&self, mut local: Local<Item>) -> String {
        let mut excess = String::new();
        local.donate(&self.release, |batch| excess += &names(batch));
        excess
    }

    /// Empties the stack; returns the names of what was there.
    fn drain(&self) -> String {
        let mut all = String::new();
        self.release.take_all(|batch| all += &names(batch));
        all
    }
}

/// Does what an owner does with an item.
fn touch(item: NonNull<Item>) {
    // SAFETY: the caller owns the item.
    unsafe { item.as_ref().used.with_mut(|used| *used += 1) };
}

fn name(item: NonNull<Item>) -> char {
    // SAFETY: items live as long as the model.
    unsafe { item.as_ref().name }
}

fn names(mut batch: Batch<Item>) -> String {
    let len = batch.len() as usize;
    let names: String = std::iter::from_fn(|| batch.pop()).inspect(|&item| touch(item)).map(name).collect();
    assert_eq!(names.len(), len);
    names
}

/// Whether these names, in whatever order, are all there are: none lost, none twice.
fn assert_all(shared: &Shared, mut names: Vec<char>) {
    names.sort_unstable();
    let all: Vec<_> = shared.items.iter().map(|item| item.name).collect();
    assert_eq!(names, all);
}

/// Each item has one owner at a time and none is lost, while one thread takes, another takes, uses and gives back
/// (so that the first one's take finds the same item again: what would be the ABA problem if items were popped one by
/// one), and a third gives.
fn a_taker_reuses_what_another_takes() {
    let shared = Shared::new(100, "abc");
    shared.release.push(shared.batch("a")).unwrap();
    shared.release.push(shared.batch("b")).unwrap();

    let (taken, reused, ()) = race::three(
        &shared,
        |shared| shared.take(&mut Local::new()).map(name),
        |shared| {
            let mut local = Local::new();
            let excess = shared.take(&mut local).map(|item| shared.give(&mut local, item)).unwrap_or_default();
            excess + &shared.exit(local)
        },
        |shared| shared.release.push(shared.batch("c")).unwrap(),
    );

    assert_eq!(reused, "");
    assert_all(&shared, shared.drain().chars().chain(taken).collect());
}

/// A thread that ends gives its lists away: what another finds of them is whole.
fn a_thread_exits_while_another_takes() {
    let shared = Shared::new(BATCH as usize, "abcde");

    let (excess, taken) = race::two(
        &shared,
        |shared| {
            let mut local = Local::new();
            let mut excess = String::new();
            for item in &shared.items {
                excess += &shared.give(&mut local, item.into());
            }
            excess + &shared.exit(local)
        },
        |shared| {
            let mut local = Local::new();
            race::let_others_go_first();
            let taken: Vec<_> = std::iter::from_fn(|| shared.take(&mut local)).map(name).collect();
            assert_eq!(shared.exit(local), "");
            taken
        },
    );

    let left = shared.drain();
    assert!(left.len() <= 2 * BATCH as usize, "the stack is over its cap by more than a batch");
    assert_all(&shared, excess.chars().chain(taken).chain(left.chars()).collect());
}

/// The count that the cap is compared with never falls below what is there, or else it would wrap; and nothing is left
/// in it when all is out.
fn batches_are_counted() {
    let shared = Shared::new(0, "ab");
    shared.release.raise_cap(2 * BATCH as usize);

    let (lowered, taken) = race::two(
        &shared,
        |shared| {
            shared.release.push(shared.batch("a")).unwrap();
            let mut excess = String::new();
            shared.release.lower_cap(BATCH as usize, |batch| excess += &names(batch));
            excess
        },
        |shared| {
            let taken = shared.release.take().map(names).unwrap_or_default();
            taken + &shared.release.push(shared.batch("b")).map_err(names).err().unwrap_or_default()
        },
    );

    let left = shared.drain();
    assert_all(&shared, lowered.chars().chain(taken.chars()).chain(left.chars()).collect());
    assert!(shared.release.push(shared.batch("a")).is_ok(), "the stack is empty, and not at its cap");
    assert!(shared.release.push(shared.batch("b")).is_err(), "the stack is at its cap");
}
