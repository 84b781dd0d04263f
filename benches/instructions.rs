//! Work whose instructions are counted, not timed: `ci/instructions.sh` runs this under callgrind with two counts and
//! prints the difference for one operation.
//!
//! `instructions CASE COUNT`, with the case `lifecycle` (create, enter, end, drop) or `switch` (enter, and back by a
//! yield).

use std::env;

use aioco::{Coroutine, yield_now};

fn main() {
    let mut arguments = env::args().skip(1).filter(|argument| argument != "--bench");
    // Without arguments, as `cargo bench` runs it, a little of each shows that it works.
    let case = arguments.next();
    let count = arguments.next().map_or(10, |count| count.parse().expect("the count is a number"));
    match case.as_deref() {
        Some("lifecycle") => lifecycle(count),
        Some("switch") => switch(count),
        Some(other) => panic!("no such case: {other}"),
        None => {
            lifecycle(count);
            switch(count);
        }
    }
}

fn lifecycle(count: u64) {
    for _ in 0..count {
        Coroutine::new(|| ()).expect("a stack can be mapped").enter();
    }
}

fn switch(count: u64) {
    let co = Coroutine::new(move || (0..=count).for_each(|_| yield_now())).expect("a stack can be mapped");
    for _ in 0..count {
        co.enter();
    }
}
