//! Coroutines as their users hold them.
#![allow(unsafe_code)] // # Safety: a handle owns its coroutine; the generation tells whether it is still there.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::task::Waker;

use super::block::{Block, Label, Phase};
use super::enter::{self, UNSTARTED};
use super::home::{Home, Woken};
use super::stack::Class;
use super::supply;
use super::thread::this_thread;
use super::wake::Target;

/// A coroutine that its owner drives, by [`enter`](Self::enter).
///
/// # Dropping
///
/// A coroutine that was never entered is dropped with its closure; one that has ended leaves nothing behind; a suspended one
/// is unwound: its drop guards run, with the panic payload [`Cancelled`](super::Cancelled), without a call of the panic hook. One that is dropped from
/// within (it is entered at that moment) unwinds at its next suspension.
///
/// # Threads
///
/// A coroutine runs on the thread on which it was first entered, for ever, since its stack may hold what isn't `Send`. What may
/// cross threads is an [`Unstarted`] coroutine, and a [`Waker`].
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
    block: &'static Block,
    generation: u32,
    label: Label,
    /// Neither `Send` nor `Sync`.
    marker: PhantomData<*mut ()>,
}

impl Coroutine {
    /// Creates a coroutine that will run `f`, with a stack of the default size. It starts at the first [`enter`](Self::enter).
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
    #[inline]
    #[track_caller]
    pub fn new(f: impl FnOnce() + 'static) -> io::Result<Self> {
        let label = Label { name: None, location: Some(Location::caller()) };
        create(Class::DEFAULT, label, f)
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
    #[inline]
    pub fn enter(&self) {
        let block = self.block;
        if block.state.generation() != self.generation {
            self.refuse_finished();
        }
        let thread = this_thread();
        match block.phase.get() {
            Phase::Unstarted => enter::begin(thread, block),
            Phase::Yielded => {}
            Phase::Parked => block.state.enter_parked(),
            _ => self.refuse_entered(),
        }
        // SAFETY: it is suspended or unstarted, and the handle doesn't leave its thread. If a queue has it, as happens when it
        // was woken out of a park, the entry is stale from now on.
        unsafe { enter::run(thread, block) };
    }

    #[cold]
    #[inline(never)]
    fn refuse_finished(&self) -> ! {
        panic!("{} was entered after its end", self.label)
    }

    #[cold]
    #[inline(never)]
    fn refuse_entered(&self) -> ! {
        panic!("{} was entered while it is entered already", self.label)
    }

    /// Whether it has been entered at least once.
    pub fn is_started(&self) -> bool {
        self.phase() != Phase::Unstarted
    }

    /// Whether it has been entered and has not yielded, parked or ended since; true also while it waits for a coroutine that
    /// it entered.
    pub fn is_entered(&self) -> bool {
        self.phase() == Phase::Entered
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.phase() == Phase::Free
    }

    fn phase(&self) -> Phase {
        if self.block.state.generation() == self.generation { self.block.phase.get() } else { Phase::Free }
    }

    /// The name that it was built with.
    pub fn name(&self) -> Option<&str> {
        self.label.name.as_deref()
    }

    /// A waker for it. Waking it when it has ended does nothing.
    pub fn waker(&self) -> Waker {
        self.as_ref().waker()
    }

    /// A reference that compares equal to what [`current`](super::current()) returns inside of it.
    #[allow(clippy::should_implement_trait, reason = "not a borrow: a value")]
    pub fn as_ref(&self) -> CoroutineRef {
        CoroutineRef { target: Target::new(self.block, self.generation), marker: PhantomData }
    }
}

impl Drop for Coroutine {
    #[inline]
    fn drop(&mut self) {
        if self.block.state.generation() == self.generation {
            self.end();
        }
    }
}

impl Coroutine {
    #[cold]
    #[inline(never)]
    fn end(&mut self) {
        let thread = this_thread();
        match self.block.phase.get() {
            Phase::Unstarted => enter::discard_unstarted(thread, self.block),
            Phase::Entered => self.block.unwind.set(true),
            _ => enter::unwind(thread, self.block),
        }
    }
}

impl fmt::Debug for Coroutine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coroutine")
            .field("label", &format_args!("{}", self.label))
            .field("phase", &self.phase())
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

// SAFETY: the coroutine hasn't started, so its stack holds nothing of its own; its closure is `Send` (see `create_unstarted`);
// and the owner of an unstarted coroutine may touch every field of its block, on whatever thread.
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
    name: Option<Arc<str>>,
    stack_size: Option<usize>,
}

impl Builder {
    /// No name, and a stack of 256 KiB of address space.
    pub fn new() -> Self {
        Self::default()
    }

    /// The name by which messages call the coroutine.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into().into());
        self
    }

    /// How many bytes of address space the stack gets, with its guard page: rounded up to a power of two, and to 64 KiB, on
    /// which a panic with a backtrace fits. Memory is committed a page at a time, as it is touched.
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
        let (class, label) = self.parts(Location::caller())?;
        create(class, label, f)
    }

    /// Creates a coroutine that may be sent to another thread before it starts.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    #[track_caller]
    pub fn create_unstarted(self, f: impl FnOnce() + Send + 'static) -> io::Result<Unstarted> {
        let (class, label) = self.parts(Location::caller())?;
        create(class, label, f).map(Unstarted)
    }

    /// Creates a coroutine that `home` drives, and schedules it there. For spawners; they see to it that `f` doesn't panic.
    ///
    /// # Safety
    ///
    /// - `f` may be sent to the home's thread, and run or dropped there.
    /// - What `f` borrows lives until it has been run to its end or dropped.
    pub(crate) unsafe fn spawn<F: FnOnce()>(
        self,
        home: Arc<dyn Home>,
        location: &'static Location<'static>,
        f: impl FnOnce(Target) -> F,
    ) -> io::Result<()> {
        let (class, label) = self.parts(location)?;
        let block = supply::take(this_thread(), class)?;
        // SAFETY: the block is ours, and fresh from the pool; the rest is the contract.
        unsafe {
            prepare(block, label, f(Target::of(block)));
            *block.home.get() = Some(home.clone());
        }
        block.spawned.set(true);
        block.state.schedule_unstarted();
        home.schedule(Woken::new(block));
        Ok(())
    }

    fn parts(self, location: &'static Location<'static>) -> io::Result<(Class, Label)> {
        let class = self.stack_size.map_or(Ok(Class::DEFAULT), Class::for_size)?;
        Ok((class, Label { name: self.name, location: Some(location) }))
    }
}

#[inline]
fn create<F: FnOnce() + 'static>(class: Class, label: Label, f: F) -> io::Result<Coroutine> {
    let block = supply::take(this_thread(), class)?;
    // SAFETY: the block is ours, and fresh from the pool; `f` borrows nothing.
    unsafe { prepare(block, label.clone(), f) };
    Ok(Coroutine { block, generation: block.state.generation(), label, marker: PhantomData })
}

/// Makes a block from the pool an unstarted coroutine.
///
/// # Safety
///
/// - The caller owns the block, which has no tenant.
/// - What `f` borrows lives until it has been run to its end or dropped.
#[inline(always)]
unsafe fn prepare<F: FnOnce()>(block: &'static Block, label: Label, f: F) {
    block.unwind.set(false);
    block.raised.set(0);
    block.spawned.set(false);
    block.on_abandon.set(None);
    block.thread.set(UNSTARTED);
    block.phase.set(Phase::Unstarted);
    // SAFETY: the block is ours and its storage empty.
    unsafe {
        *block.label.get() = label;
        block.store(f);
    }
}
