//! Planted faults for the models.
//!
//! `mutant!("name")` is `false` in every ordinary build. In a model build it is true while a test of `loom-tests/` has
//! armed that name, so that the test can show that the model catches the fault: a model that no mutant can fail
//! proves nothing.

/// Whether the planted fault of this name is armed.
macro_rules! mutant {
    ($name:literal) => {{
        #[cfg(all(test, loom))]
        {
            $crate::primitive::mutant::armed($name)
        }
        #[cfg(not(all(test, loom)))]
        {
            let _: &str = $name;
            false
        }
    }};
}
pub(crate) use mutant;

#[cfg(all(test, loom))]
mod model {
    use std::cell::Cell;

    // A plain thread-local: loom runs all threads of a model on the OS thread of the test that started it.
    std::thread_local! {
        static ARMED: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Arms one fault for the models that this test runs.
    pub(crate) fn arm(name: &'static str) {
        ARMED.set(Some(name));
    }

    pub(crate) fn armed(name: &str) -> bool {
        ARMED.get() == Some(name)
    }
}
#[cfg(all(test, loom))]
pub(crate) use model::{arm, armed};
