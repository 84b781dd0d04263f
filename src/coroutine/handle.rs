//! Coroutines as their users hold them.
#![allow(unsafe_code)] // # Safety: a handle owns its coroutine's block until it is dropped.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::task::Waker;

use super::block::{Block, Extras, Phase};
use super::enter::{self, ANY, Switch};
use super::home::{Home, Woken};
use super::label::{Label, Name};
use super::stack::Class;
use super::thread::{Thread, this_thread};
use super::wake::Target;
use super::{newborn, supply};
use crate::primitive::atomic::Ordering;

/// A coroutine that its owner drives, by [`enter`](Self::enter).
///
/// It is one pointer, and owns a control block and a stack.
///
/// # Dropping
///
/// The stack goes back to the pool. A coroutine that was never entered is dropped with its closure; a suspended one is
/// unwound: its drop guards run, with the panic payload [`Cancelled`](super::Cancelled), without a call of the panic
/// hook. One that is dropped from within (it is entered at that moment) unwinds at its next suspension.
///
/// # Threads
///
/// A coroutine runs on the thread on which it was first entered, for ever, since its stack may hold what isn't `Send`.
/// What may cross threads is an [`Unstarted`] coroutine, and a [`Waker`].
///
/// ```compile_fail,E0277
/// let co = aioco::Coroutine::new(|| ()).unwrap();
/// std::thread::spawn(move || co.enter());
/// ```
///
/// ```compile_fail,E0277
/// let co = aioco::Coroutine::new(|| ()).unwrap();
/// std::thread::scope(|s| s.spawn(|| co.enter()).join().unwrap());
/// ```
pub struct Coroutine {
    /// Stored anew after each switch, where it is known in a register: a handle that the compiler keeps in registers
    /// needn't be reloaded from the stack then, whose pointer is only just being loaded itself.
    block: Cell<&'static Block>,
    /// Neither `Send` nor `Sync`.
    marker: PhantomData<*mut ()>,
}

impl Coroutine {
    /// Creates a coroutine that will run `f`, with a stack of the default size. It starts at the first
    /// [`enter`](Self::enter).
    ///
    /// ```
    /// let co = aioco::Coroutine::new(|| println!("inside"))?;
    /// co.enter();
    /// assert!(co.is_finished());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If no stack can be had; the message names `vm.max_map_count` where that is the cause.
    #[inline(always)]
    #[track_caller]
    pub fn new(f: impl FnOnce() + 'static) -> io::Result<Self> {
        create(Class::DEFAULT, None, Location::caller(), f)
    }

    /// Starts to build a coroutine with a name or a stack size of its own.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Runs the coroutine until it yields, parks or ends; then the coroutines that it woke, first woken first run, and
    /// those that they woke before the others (depth first).
    ///
    /// Entering a parked coroutine counts as a wake-up.
    ///
    /// # Panics
    ///
    /// - If the coroutine is entered already, by this or another `enter` up the call chain.
    /// - If it has ended.
    /// - If it panics, or one that it woke and that has no join handle: with that payload.
    #[inline(always)]
    pub fn enter(&self) {
        let block = self.block.get();
        let thread = this_thread();
        let switch = match block.phase.get() {
            Phase::Unstarted => Switch::Start,
            Phase::Yielded => Switch::Resume,
            Phase::Parked => {
                block.state.enter_parked();
                Switch::Resume
            }
            _ => refuse(block),
        };
        // SAFETY: it is unstarted or suspended, and the handle doesn't leave its thread. If a queue has it, as happens
        // when it was woken out of a park, the entry is stale from now on.
        self.block.set(unsafe { enter::run(thread, block, switch) });
    }

    /// Whether it has been entered at least once.
    pub fn is_started(&self) -> bool {
        self.block.get().phase.get() != Phase::Unstarted
    }

    /// Whether it has been entered and has not yielded, parked or ended since; true also while it waits for a coroutine
    /// that it entered.
    pub fn is_entered(&self) -> bool {
        self.block.get().phase.get() == Phase::Entered
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        matches!(self.block.get().phase.get(), Phase::Returned | Phase::Panicked)
    }

    fn label(&self) -> &Label {
        // SAFETY: the handle owns the block.
        unsafe { self.block.get().label() }
    }

    /// The name that it was built with.
    pub fn name(&self) -> Option<&str> {
        self.label().name()
    }

    /// A waker for it. Waking it when it has ended does nothing.
    pub fn waker(&self) -> Waker {
        self.as_ref().waker()
    }

    /// A reference that compares equal to what [`current`](super::current()) returns inside of it.
    #[allow(clippy::should_implement_trait, reason = "not a borrow: a value")]
    pub fn as_ref(&self) -> CoroutineRef {
        CoroutineRef::of(self.block.get())
    }
}

impl Drop for Coroutine {
    #[inline(always)]
    fn drop(&mut self) {
        let block = self.block.get();
        let thread = this_thread();
        match block.phase.get() {
            // SAFETY: the handle owns the block, and gives it up.
            Phase::Returned => unsafe { enter::end(thread, block) },
            // SAFETY: as above.
            _ => unsafe { drop_early(thread, block) },
        }
    }
}

// What follows takes the block, not the handle, so that the handle's address isn't needed, and it can live in a
// register.

#[cold]
#[inline(never)]
fn refuse(block: &'static Block) -> ! {
    // SAFETY: the caller's handle owns the block.
    let label = unsafe { block.label() };
    match block.phase.get() {
        Phase::Entered => panic!("{label} was entered while it is entered already"),
        _ => panic!("{label} was entered after its end"),
    }
}

/// Drops the handle of a coroutine that hasn't returned.
///
/// # Safety
///
/// The caller's handle owns the block, and gives it up.
#[cold]
#[inline(never)]
unsafe fn drop_early(thread: &'static Thread, block: &'static Block) {
    // SAFETY: contract.
    unsafe {
        match block.phase.get() {
            Phase::Unstarted => enter::discard_unstarted(thread, block),
            Phase::Entered => block.add_extra(Extras::UNWIND.with(Extras::DETACHED)),
            Phase::Panicked => enter::end(thread, block),
            _ => {
                block.add_extra(Extras::DETACHED);
                enter::unwind(thread, block);
            }
        }
    }
}

impl fmt::Debug for Coroutine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coroutine")
            .field("label", &format_args!("{}", self.label()))
            .field("phase", &self.block.get().phase.get())
            .finish()
    }
}

/// Names a coroutine on its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoroutineRef {
    target: Target,
    /// Neither `Send` nor `Sync`.
    marker: PhantomData<*mut ()>,
}

impl CoroutineRef {
    /// The present tenant of a block of this thread.
    pub(super) fn of(block: &Block) -> Self {
        Self { target: Target::of(block), marker: PhantomData }
    }

    /// A waker for it. Waking it when it has ended does nothing.
    pub fn waker(&self) -> Waker {
        self.target.waker()
    }
}

/// A coroutine that hasn't started, and may be sent to the thread that will run it.
///
/// ```
/// use aioco::coroutine::Builder;
/// let unstarted = Builder::new().create_unstarted(|| println!("elsewhere"))?;
/// std::thread::spawn(move || unstarted.bind().enter()).join().unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// What it runs must be `Send`:
///
/// ```compile_fail,E0277
/// let local = std::rc::Rc::new(1);
/// aioco::coroutine::Builder::new().create_unstarted(move || drop(local));
/// ```
#[derive(Debug)]
pub struct Unstarted(Coroutine);

// SAFETY: the coroutine hasn't started, so its stack holds nothing of its own; its closure is `Send` (see
// `create_unstarted`); and the owner of an unstarted coroutine may touch every field of its block, on whatever thread.
unsafe impl Send for Unstarted {}

impl Unstarted {
    /// Binds the coroutine to the calling thread.
    #[inline]
    pub fn bind(self) -> Coroutine {
        self.0
    }
}

/// Builds coroutines with a name or a stack size of their own.
///
/// ```
/// use aioco::coroutine::Builder;
/// let co = Builder::new().name("flush").stack_size(64 << 10).create(|| ())?;
/// assert_eq!(co.name(), Some("flush"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Builder {
    name: Option<Arc<Name>>,
    stack_size: Option<usize>,
}

impl Builder {
    /// No name, and a stack of 256 KiB of address space.
    pub fn new() -> Self {
        Self::default()
    }

    /// The name by which messages call the coroutine.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(Name::new(name.into()));
        self
    }

    /// How many bytes of address space the stack gets, beside its guard page: rounded up to a power of two, and to 64
    /// KiB, on which a panic with a backtrace fits. Memory is committed a page at a time, as it is touched.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Creates a coroutine that will run `f`.
    ///
    /// # Errors
    ///
    /// - [`InvalidInput`](io::ErrorKind::InvalidInput) for a stack of 0 bytes or more than 1 GiB.
    /// - If no stack can be had; the message names `vm.max_map_count` where that is the cause.
    #[track_caller]
    pub fn create(self, f: impl FnOnce() + 'static) -> io::Result<Coroutine> {
        create(self.class()?, self.name, Location::caller(), f)
    }

    /// Creates a coroutine that may be sent to another thread before it starts.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    #[track_caller]
    pub fn create_unstarted(self, f: impl FnOnce() + Send + 'static) -> io::Result<Unstarted> {
        create(self.class()?, self.name, Location::caller(), f).map(Unstarted)
    }

    /// What it takes to make a coroutine that a home drives; see [`Spawning::spawn`].
    #[inline]
    pub(crate) fn spawning(self) -> io::Result<Spawning> {
        let block = supply::take(this_thread(), self.class()?)?;
        Ok(Spawning { block, name: self.name })
    }

    #[inline]
    fn class(&self) -> io::Result<Class> {
        self.stack_size.map_or(Ok(Class::DEFAULT), Class::for_size)
    }
}

/// A control block and a stack for a coroutine that is about to be spawned.
#[must_use = "the block is lost"]
pub(crate) struct Spawning {
    block: &'static Block,
    name: Option<Arc<Name>>,
}

impl Spawning {
    /// The coroutine that is going to be.
    #[inline]
    pub(crate) fn target(&self) -> Target {
        Target::of(self.block)
    }

    /// Makes it a coroutine that `home` drives, and schedules it there, at the latest when the calling coroutine
    /// suspends. `here`: it starts on the calling thread only, wherever the home takes it. For spawners; they see to it
    /// that `f` doesn't panic.
    ///
    /// # Safety
    ///
    /// - `f` is `Send`, or the coroutine starts `here`.
    /// - What `f` borrows lives until it has been run to its end or dropped.
    #[inline]
    pub(crate) unsafe fn spawn(
        self,
        home: &Arc<dyn Home>,
        location: &'static Location<'static>,
        here: bool,
        f: impl FnOnce(),
    ) {
        let Self { block, name } = self;
        let thread = this_thread();
        // SAFETY: the block is ours, and fresh from the pool; the rest is the contract.
        unsafe { prepare(block, name, location, f) };
        block.add_extra(Extras::SPAWNED.with(Extras::DETACHED));
        block.thread.store(if here { thread.id.get() } else { ANY }, Ordering::Relaxed);
        // SAFETY: the block is ours, and has no home yet.
        unsafe {
            if newborn::keep(thread, block, home) {
                return;
            }
            block.set_home(home.clone());
        }
        block.state.mark_queued();
        home.schedule(Woken::new(block));
    }
}

#[inline(always)]
fn create<F: FnOnce() + 'static>(
    class: Class,
    name: Option<Arc<Name>>,
    location: &'static Location<'static>,
    f: F,
) -> io::Result<Coroutine> {
    let block = supply::take(this_thread(), class)?;
    // SAFETY: the block is ours, and fresh from the pool; `f` borrows nothing.
    unsafe { prepare(block, name, location, f) };
    Ok(Coroutine { block: Cell::new(block), marker: PhantomData })
}

/// Makes a block from the pool an unstarted coroutine.
///
/// # Safety
///
/// - The caller owns the block, which has no tenant.
/// - What `f` borrows lives until it has been run to its end or dropped.
#[inline(always)]
unsafe fn prepare<F: FnOnce()>(
    block: &'static Block,
    name: Option<Arc<Name>>,
    location: &'static Location<'static>,
    f: F,
) {
    block.phase.set(Phase::Unstarted);
    if name.is_some() {
        block.add_extra(Extras::NAME);
    }
    // SAFETY: the block is ours and its storage empty.
    unsafe {
        Label::write(block.label.get(), name, location);
        block.store(f);
    }
}
