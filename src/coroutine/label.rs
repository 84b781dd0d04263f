//! How messages name a coroutine.
#![allow(unsafe_code)] // # Safety: one write through a pointer, whose contract is the caller's.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// A coroutine's name, if it has one, and where it was created: two plain words, cheap to make and to move.
#[derive(Debug, Clone)]
pub(super) struct Label {
    name: Option<Arc<Name>>,
    location: &'static Location<'static>,
}

/// A name, behind a thin pointer.
#[derive(Debug)]
pub(super) struct Name(String);

impl Name {
    pub(super) fn new(name: String) -> Arc<Self> {
        Arc::new(Self(name))
    }
}

impl Label {
    /// Writes a label, word by word: a label that is made on the stack and copied whole costs a stall, because the copy
    /// reads both words at once before either has left the store buffer.
    ///
    /// # Safety
    ///
    /// `place` may be written to. What is there is not dropped.
    #[inline(always)]
    pub(super) unsafe fn write(place: *mut Self, name: Option<Arc<Name>>, location: &'static Location<'static>) {
        // SAFETY: contract.
        unsafe {
            (&raw mut (*place).name).write(name);
            (&raw mut (*place).location).write(location);
        }
    }

    /// The label of a block without a coroutine.
    #[track_caller]
    pub(super) const fn none() -> Self {
        Self { name: None, location: Location::caller() }
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_ref().map(|name| name.0.as_str())
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "coroutine \"{name}\" (created at {})", self.location),
            None => write!(f, "unnamed coroutine (created at {})", self.location),
        }
    }
}
