//! Who has an rwlock for reading: known in debug builds only, where it takes a list. It has the twin of an empty type.
//!
//! A guard has a ticket, by which it is taken out of the list again, whoever drops it.

#[cfg(all(debug_assertions, not(all(test, loom))))]
mod imp {
    use crate::park::Runner;
    use crate::primitive::Mutex;
    use crate::sync::raw::holder::{Site, refuse_recursion};

    pub(crate) struct Readers(Mutex<List>);

    struct List {
        readers: Vec<(Ticket, Runner, Site)>,
        next: u64,
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Ticket(u64);

    impl Readers {
        pub(crate) const fn new() -> Self {
            Self(Mutex::new(List { readers: Vec::new(), next: 0 }))
        }

        /// The caller has become a reader.
        pub(crate) fn add(&self, site: Site) -> Ticket {
            let mut list = self.0.lock();
            let ticket = Ticket(list.next);
            list.next += 1;
            list.readers.push((ticket, Runner::current(), site));
            ticket
        }

        /// It ceases to be one.
        pub(crate) fn remove(&self, ticket: Ticket) {
            self.0.lock().readers.retain(|&(other, ..)| other != ticket);
        }

        /// Panics if the caller, which is about to wait for readers, is one.
        pub(crate) fn refuse_deadlock(&self, site: Site) {
            let caller = Runner::current();
            let own = self.0.lock().readers.iter().find(|&&(_, runner, _)| runner == caller).map(|&(.., site)| site);
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

    #[derive(Clone, Copy)]
    pub(crate) struct Ticket;

    impl Readers {
        pub(crate) const fn new() -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn add(&self, _: Site) -> Ticket {
            Ticket
        }

        #[inline(always)]
        pub(crate) fn remove(&self, _: Ticket) {}

        pub(crate) fn refuse_deadlock(&self, _: Site) {}
    }
}

pub(super) use imp::Readers;
pub(crate) use imp::Ticket;
