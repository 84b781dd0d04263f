//! Who has an rwlock for reading: known in debug builds only, where it takes a list. It has the twin of an empty type.

#[cfg(all(debug_assertions, not(all(test, loom))))]
mod imp {
    use crate::park::Runner;
    use crate::primitive::Mutex;
    use crate::sync::raw::holder::{Site, refuse_recursion};

    pub(crate) struct Readers(Mutex<Vec<(Runner, Site)>>);

    impl Readers {
        pub(crate) const fn new() -> Self {
            Self(Mutex::new(Vec::new()))
        }

        /// The caller has become a reader.
        pub(crate) fn add(&self, site: Site) {
            self.0.lock().push((Runner::current(), site));
        }

        /// The caller ceases to be one.
        pub(crate) fn remove(&self) {
            let caller = Runner::current();
            let mut readers = self.0.lock();
            // Or else somebody gave it the guard.
            let place = readers.iter().rposition(|&(runner, _)| runner == caller).unwrap_or(0);
            if place < readers.len() {
                readers.remove(place);
            }
        }

        /// Panics if the caller, which is about to wait for readers, is one.
        pub(crate) fn refuse_deadlock(&self, site: Site) {
            let caller = Runner::current();
            let own = self.0.lock().iter().find(|&&(runner, _)| runner == caller).map(|&(_, site)| site);
            if own.is_some() {
                refuse_recursion("an rwlock", own, site);
            }
        }
    }
}

#[cfg(not(all(debug_assertions, not(all(test, loom)))))]
mod imp {
    use crate::sync::raw::holder::Site;

    pub(crate) struct Readers;

    impl Readers {
        pub(crate) const fn new() -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn add(&self, _: Site) {}

        #[inline(always)]
        pub(crate) fn remove(&self) {}

        pub(crate) fn refuse_deadlock(&self, _: Site) {}
    }
}

pub(super) use imp::Readers;
