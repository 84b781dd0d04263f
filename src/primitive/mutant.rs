//! Planted faults for the models.
//!
//! `mutant!("name")` is `false` in every ordinary build. In a model build it is true while a test of `loom-tests/` has
//! armed that name, so that the test can show that the model catches the fault: a model that no mutant can fail
//! proves nothing. `ordering!` plants the fault of a memory ordering that is too weak.

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

/// The ordering that is named first; each fault after it puts a weaker one in its place.
///
/// ```ignore
/// ordering!(AcqRel, "wake_not_released" => Acquire)
/// ```
macro_rules! ordering {
    ($right:ident $(, $name:literal => $weak:ident)+) => {{
        use $crate::primitive::atomic::Ordering;
        $(if $crate::primitive::mutant::mutant!($name) { Ordering::$weak } else)+ { Ordering::$right }
    }};
}
pub(crate) use ordering;

#[cfg(all(test, loom))]
mod model {
    use std::cell::Cell;

    #[allow(clippy::disallowed_types, reason = "loom runs the threads of a model on the OS thread of the test")]
    mod slot {
        use super::Cell;

        std::thread_local! {
            pub(super) static ARMED: Cell<Option<&'static str>> = const { Cell::new(None) };
        }
    }

    /// Runs `f` with this fault armed in the models that it checks.
    pub(crate) fn with<R>(name: &'static str, f: impl FnOnce() -> R) -> R {
        slot::ARMED.set(Some(name));
        let result = f();
        slot::ARMED.set(None);
        result
    }

    pub(crate) fn armed(name: &str) -> bool {
        slot::ARMED.get() == Some(name)
    }
}
#[cfg(all(test, loom))]
pub(crate) use model::{armed, with};
