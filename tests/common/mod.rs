//! What the tests share: a watchdog, children that may crash, figures of the process, and shorthands.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fmt::Debug;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use aioco::aio::{ContextBuilder, FdCallbacks, FdHandler, Local, MonitorKind};
use aioco::coroutine::Cancelled;
use aioco::{AioContext, Coroutine, JoinHandle};

/// Long enough for any test on a loaded machine; what takes longer hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(100);

/// `n` in an optimised build, and a part of it otherwise.
pub(crate) fn scaled(n: usize) -> usize {
    if cfg!(debug_assertions) { n / 4 } else { n }
}

/// The numbers from 1 to `n`, fewer if that takes seconds: for tests that hand something from thread to thread, which takes
/// as long as a loaded machine pleases.
pub(crate) fn rounds(n: usize) -> impl Iterator<Item = usize> {
    let end = Instant::now() + Duration::from_secs(3);
    (1..=n).take_while(move |&round| round == 1 || Instant::now() < end)
}

/// Runs `f` on a thread of its own, and aborts the process if it hasn't ended within `limit`.
pub(crate) fn within<T: Send + 'static>(limit: Duration, f: impl FnOnce() -> T + Send + 'static) -> T {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let (alive, ended) = mpsc::channel::<()>();
    let worker = thread::Builder::new().name(test.clone()).spawn(move || {
        let _alive = alive;
        f()
    });
    let worker = worker.expect("a thread for a test");
    if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(limit) {
        // Not by a macro: libtest would keep what it prints for itself.
        let _ = writeln!(io::stderr(), "{test} hangs: not done after {limit:?}");
        process::abort();
    }
    worker.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
}

/// The message of a panic.
pub(crate) fn message_of(f: impl FnOnce()) -> String {
    let payload = panic::catch_unwind(AssertUnwindSafe(f)).expect_err("should panic");
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => (*payload.downcast::<&str>().expect("a panic with a message")).to_owned(),
    }
}

const CHILD: &str = "AIOCO_TEST_CHILD";

/// How a child ended.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) status: ExitStatus,
    /// Standard output and standard error.
    pub(crate) output: String,
}

impl Exit {
    #[track_caller]
    pub(crate) fn assert_success(&self) {
        assert!(self.status.success(), "{:?}\n{}", self.status, self.output);
    }

    #[track_caller]
    pub(crate) fn assert_killed_by(&self, signal: libc::c_int) {
        assert_eq!(self.status.signal(), Some(signal), "{:?}\n{}", self.status, self.output);
    }

    #[track_caller]
    pub(crate) fn assert_says(&self, text: &str) {
        assert!(self.output.contains(text), "no {text:?} in:\n{}", self.output);
    }
}

/// Runs `scenario(argument)` in a process of its own, and tells how that ended.
///
/// The process is this test binary, told to run the calling test: so the caller does nothing before, and calls this
/// from the test's own thread, for one scenario with as many arguments as it likes.
pub(crate) fn child(argument: &str, scenario: impl FnOnce(&str)) -> Exit {
    child_with(argument, &[], scenario)
}

/// As [`child`], with environment variables.
pub(crate) fn child_with(argument: &str, variables: &[(&str, &str)], scenario: impl FnOnce(&str)) -> Exit {
    if let Ok(argument) = env::var(CHILD) {
        act_as_child(|| scenario(&argument));
    }
    let test = thread::current().name().expect("libtest names the threads of tests").to_owned();
    start(argument, variables, &[&test, "--exact", "--nocapture", "--test-threads=1"])
}

/// The argument of the scenario for which this process was started.
pub(crate) fn child_argument() -> Option<String> {
    env::var(CHILD).ok()
}

/// Runs the scenario of a child, and exits.
pub(crate) fn act_as_child(scenario: impl FnOnce()) -> ! {
    no_core_dumps();
    let result = panic::catch_unwind(AssertUnwindSafe(scenario));
    process::exit(if result.is_ok() { 0 } else { 101 });
}

/// Starts this binary as a child, and waits for it.
pub(crate) fn start(argument: &str, variables: &[(&str, &str)], arguments: &[&str]) -> Exit {
    let mut command = command(&env::current_exe().expect("the test's own path"));
    command.args(arguments).env("RUST_BACKTRACE", "0").env(CHILD, argument).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starting a child");
    let stdout = read_all(child.stdout.take().expect("piped"));
    let stderr = read_all(child.stderr.take().expect("piped"));
    let status = wait(&mut child, argument);
    let output = stdout.join().expect("reading a pipe") + &stderr.join().expect("reading a pipe");
    Exit { status, output }
}

/// How to start a program that was built for the tests: by itself, or by the emulator that runs the tests.
pub(crate) fn command(program: &Path) -> Command {
    match env::var_os("AIOCO_TEST_RUNNER") {
        None => Command::new(program),
        Some(runner) => {
            let mut command = Command::new(runner);
            command.arg(program);
            command
        }
    }
}

fn wait(child: &mut Child, argument: &str) -> ExitStatus {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().expect("waiting for a child") {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().expect("ending a child");
            panic!("the child {argument:?} hangs: not done after {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("reading a pipe");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn no_core_dumps() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is a valid argument.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}

/// Fills `kilobytes` of the caller's stack, from here downwards, with 0xAA.
#[inline(never)]
pub(crate) fn dirty_stack(kilobytes: usize) {
    #[inline(never)]
    fn down_to(end: usize) {
        let rubbish = black_box([0xAAu8; 512]);
        if stack_pointer() > end {
            down_to(end);
        }
        black_box(rubbish);
    }
    down_to(stack_pointer() - kilobytes * 1024);
}

/// Where the caller's frame ends. (Not the address of a local: AddressSanitizer keeps some locals elsewhere.)
#[inline(always)]
fn stack_pointer() -> usize {
    let address;
    // SAFETY: reads a register.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov {}, rsp", out(reg) address, options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("mov {}, sp", out(reg) address, options(nomem, nostack, preserves_flags));
    }
    address
}

/// The number of memory mappings of this process.
pub(crate) fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").expect("/proc is mounted").lines().count()
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("the format of statm");
    pages * page_size()
}

pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Whether this kernel can make guard pages that split no mapping.
pub(crate) fn has_guard_markers() -> bool {
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    let len = 4 * page_size();
    // SAFETY: a new mapping of our own, which is unmapped again.
    unsafe {
        let base = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(base, libc::MAP_FAILED);
        let result = libc::madvise(base, page_size(), MADV_GUARD_INSTALL);
        libc::munmap(base, len);
        result == 0
    }
}

/// The number in the first word of a file of /proc.
pub(crate) fn proc_number(path: &str) -> Option<usize> {
    fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()
}

/// Makes the kernel answer these calls of this thread, and of those that it starts, with an error.
pub(crate) fn forbid(calls: &[libc::c_long], errno: libc::c_int) {
    let instruction = |code, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for &call in calls {
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32));
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32));
    }
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is valid for its length, and the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter), 0);
    }
}

pub(crate) fn coroutine(f: impl FnOnce() + 'static) -> Coroutine {
    Coroutine::new(f).expect("a stack")
}

/// A context; see [`builder`].
pub(crate) fn context() -> AioContext {
    builder().build().expect("a context")
}

/// What makes a context; with the monitor that the variable `AIOCO_TEST_MONITOR` names, if it is set, so that any test
/// can be run with each.
pub(crate) fn builder() -> ContextBuilder {
    let builder = AioContext::builder();
    let Ok(name) = env::var("AIOCO_TEST_MONITOR") else { return builder };
    let named = MONITORS.into_iter().find(|kind| kind.to_string() == name);
    builder.monitor(named.expect("the name of a monitor"))
}

/// All kinds of monitors.
pub(crate) const MONITORS: [MonitorKind; 3] = [MonitorKind::Poll, MonitorKind::Epoll, MonitorKind::IoUring];

/// Runs a scenario with each monitor.
pub(crate) fn each(scenario: impl Fn(&AioContext) + Send + Sync + 'static) {
    within(LIMIT, move || each_here(scenario));
}

/// As [`each`], on the calling thread.
pub(crate) fn each_here(scenario: impl Fn(&AioContext)) {
    for kind in MONITORS {
        if let Some(context) = with(kind) {
            println!("with {kind}");
            scenario(&context);
        }
    }
}

/// A context with this monitor, if it can be had.
pub(crate) fn with(kind: MonitorKind) -> Option<AioContext> {
    match AioContext::builder().monitor(kind).build() {
        Ok(context) => {
            assert_eq!(context.monitor().kind(), kind);
            Some(context)
        }
        Err(error) => {
            println!("SKIPPED with {kind}: {error}");
            None
        }
    }
}

/// Another context with the same monitor, one that may be dropped.
pub(crate) fn alike(context: &AioContext) -> AioContext {
    builder_like(context).build().expect("another context")
}

/// What makes a context with the same monitor.
pub(crate) fn builder_like(context: &AioContext) -> ContextBuilder {
    AioContext::builder().monitor(context.monitor().kind())
}

pub(crate) fn eventfd() -> OwnedFd {
    // SAFETY: no memory arguments; the descriptor is new.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    assert!(fd >= 0, "an eventfd");
    // SAFETY: as above.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub(crate) fn raise(eventfd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: a valid buffer.
    assert_eq!(unsafe { libc::write(eventfd.as_raw_fd(), one.as_ptr().cast(), 8) }, 8);
}

pub(crate) fn lower(eventfd: &OwnedFd) {
    let mut count = [0u8; 8];
    // SAFETY: a valid buffer.
    assert_eq!(unsafe { libc::read(eventfd.as_raw_fd(), count.as_mut_ptr().cast(), 8) }, 8);
}

#[track_caller]
pub(crate) fn spawn<T: Send + 'static>(context: &AioContext, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    context.spawn(f).expect("a stack")
}

/// Has the loop watch a descriptor that is never ready: one that watches nothing sleeps in another way.
pub(crate) fn watch_something(context: &Local) -> FdHandler<'static> {
    context.add_owned_fd(eventfd(), FdCallbacks::new().on_readable(|| unreachable!())).expect("a handler")
}

/// Runs turns until nothing is left to do without waiting.
pub(crate) fn settle(context: &Local) {
    while context.poll(false) {}
}

#[track_caller]
pub(crate) fn assert_cancelled<T>(result: thread::Result<T>) {
    let payload = result.map(drop).expect_err("cancelled");
    assert!(payload.is::<Cancelled>());
}

pub(crate) fn sockets() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("sockets")
}

/// Counts: how often something was reached, or how many of its guards were dropped.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<AtomicU32>);

/// Raises a count when it is dropped.
pub(crate) struct Guard(Count);

impl Count {
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn raise(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn guard(&self) -> Guard {
        Guard(self.clone())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.raise();
    }
}

/// Calls a function when it is dropped.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Retries a condition that another thread is about to make true; gives up, and lets the caller's assertion fail, after
/// a long time.
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + LIMIT / 5;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        thread::yield_now();
    }
    true
}

/// Asserts that a list of events is in order, with a readable message.
#[track_caller]
pub(crate) fn assert_order<T: PartialEq + Debug, U: Into<T> + Copy>(got: &[T], want: &[U]) {
    let want: Vec<T> = want.iter().map(|&item| item.into()).collect();
    assert_eq!(got, want);
}
