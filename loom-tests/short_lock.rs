//! The lock that is held for a moment.

use std::rc::Rc;

use super::race;
use crate::primitive::short_lock::ShortLock;

models! {
    holders_see_what_others_did catches short_lock_not_acquired, short_lock_not_released;
}

/// Two holders count, and none is missing.
fn holders_see_what_others_did() {
    let count = Rc::new(ShortLock::new(0));
    let raise = |count: &ShortLock<u32>| *count.lock() += 1;

    race::two(&count, raise, raise);

    assert_eq!(*count.lock(), 2);
}
