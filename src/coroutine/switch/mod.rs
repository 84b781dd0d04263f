//! The stack switch: a [`Fiber`] is a stack, and what is needed to go there and back.
//!
//! There are two back ends with the same functions:
//!
//! - `jump`, on x86-64 and aarch64 Linux: leaves by an indirect jump, inlined on both sides, which is what the return
//!   predictors of CPUs can follow; see there.
//! - `portable`, everywhere else, and where the feature `portable-switch` asks for it: corosensei.
//!
//! Each has, in this order:
//!
//! | function | called by | what it does |
//! |---|---|---|
//! | `Fiber::empty` | the table | a fiber without a stack |
//! | `Fiber::set_up` | the pool | gives it a stack |
//! | `Fiber::tear_down` | the pool | takes the stack away |
//! | `Fiber::start` | the loop that enters coroutines | runs an entry function at the top of the stack; comes back when it suspends or finishes |
//! | `Fiber::resume` | the same | goes on where the fiber suspended; comes back likewise |
//! | `Fiber::suspend` | the fiber itself | goes back; returns when the fiber is resumed |
//! | `Fiber::finish` | the fiber itself, at the end of the entry function | goes back for good; the stack may be started again |
//!
//! `start` and `resume` return the block anew, and `suspend` too: see the head of `jump` for what that is good for.
//!
//! # What the pool keeps
//!
//! Bare stacks. The alternative, a loop parked at the top of each stack that takes one body after another, needs a call
//! and a return more for each coroutine, and when coroutines nest deeper than the CPU's stack of return addresses, each
//! such return is mispredicted; a stack that is started by a jump needs neither, and nothing has to be saved when a
//! body ends.

#[cfg(jump_switch)]
mod jump;
#[cfg(not(jump_switch))]
mod portable;

#[cfg(jump_switch)]
pub(super) use jump::Fiber;
#[cfg(not(jump_switch))]
pub(super) use portable::Fiber;
