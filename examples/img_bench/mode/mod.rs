//! Ways to keep requests in flight: through the crate, by coroutines or callbacks, and without it, as yardsticks.

mod bypass;
mod coroutine;
mod pread;
mod raw;

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use aioco::AioContext;
use aioco::aio::{IoThread, Local, Polling};
use aioco::block::{self, AlignedBuf};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use parking_lot::{Condvar, Mutex};

use crate::Error;
use crate::job::Job;
use crate::lane::{Figures, Lane};
use crate::usage::cpu_time;

/// How requests are kept in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A coroutine for each slot, which calls aioco::block::File
    Coroutine,
    /// Callbacks: aioco::block::read_then and write_all_then
    Bypass,
    /// An io_uring written by hand, with registered files and buffers; without aioco
    RawRing,
    /// Linux AIO by hand; without aioco
    RawAio,
    /// pread and pwrite, one after the other; without aioco
    Pread,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Coroutine => "coroutine",
            Mode::Bypass => "bypass",
            Mode::RawRing => "raw-ring",
            Mode::RawAio => "raw-aio",
            Mode::Pread => "pread",
        })
    }
}

impl Mode {
    /// Whether it is the crate that carries out requests.
    pub fn is_aioco(self) -> bool {
        matches!(self, Mode::Coroutine | Mode::Bypass)
    }
}

/// What a run has measured.
pub struct Outcome {
    pub elapsed: Duration,
    pub cpu: Duration,
    pub ios: u64,
    pub calls: u64,
    /// In nanoseconds.
    pub latencies: Histogram<u64>,
    /// What carried out requests, and why.
    pub engine: String,
}

/// What a thread has measured.
struct Part {
    figures: Figures,
    calls: u64,
    engine: String,
}

/// Does a job in some mode.
pub fn run(job: &Arc<Job>, mode: Mode) -> Result<Outcome, Error> {
    let course = Arc::new(Course::new(job.threads));
    let lanes = (0..job.threads).map(|thread| Lane::new(job, thread)).collect::<Result<Vec<_>, _>>()?;
    let parts = match mode {
        Mode::Coroutine => on_contexts(job, lanes, &course, coroutine::run),
        Mode::Bypass => on_contexts(job, lanes, &course, bypass::run),
        Mode::RawRing => on_threads(job, lanes, &course, raw::ring),
        Mode::RawAio => on_threads(job, lanes, &course, raw::linux_aio),
        Mode::Pread => on_threads(job, lanes, &course, pread::run),
    };
    let cpu = course.cpu();
    let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
    let begun = parts.iter().map(|part| part.figures.begun).min().ok_or("no thread ran")?;
    let ended = parts.iter().map(|part| part.figures.ended).max().ok_or("no thread ran")?;
    let mut latencies = Histogram::new_from(&parts[0].figures.latencies);
    parts.iter().try_for_each(|part| latencies.add(&part.figures.latencies))?;
    Ok(Outcome {
        elapsed: ended - begun,
        cpu,
        ios: latencies.len(),
        calls: parts.iter().map(|part| part.calls).sum(),
        latencies,
        engine: parts.into_iter().next().map(|part| part.engine).unwrap_or_default(),
    })
}

/// How a thread does its part.
type Run = fn(&Arc<Job>, Lane, Runner) -> Result<Part, Error>;

/// Each lane as a coroutine: on a context of this thread, if there is one, or on I/O threads.
fn on_contexts(job: &Arc<Job>, lanes: Vec<Lane>, course: &Arc<Course>, run: Run) -> Vec<Result<Part, Error>> {
    let builder = AioContext::builder().polling(Polling::up_to(job.polling));
    let no_loop = |error: io::Error| Error::from(format!("cannot make an event loop: {error}"));
    if lanes.len() == 1 {
        let context = match builder.build() {
            Ok(context) => context,
            Err(error) => return vec![Err(no_loop(error))],
        };
        let here = |lane| context.block_on(|| run(job, lane, Course::runner(course)));
        return lanes.into_iter().map(here).collect();
    }
    let io_threads: io::Result<Vec<_>> =
        (0..lanes.len()).map(|number| IoThread::with(format!("io-{number}"), builder.clone())).collect();
    let io_threads = match io_threads {
        Ok(io_threads) => io_threads,
        Err(error) => return vec![Err(no_loop(error))],
    };
    let spawned: Vec<_> = io_threads
        .iter()
        .zip(lanes)
        .map(|(io_thread, lane)| {
            let (job, runner) = (job.clone(), Course::runner(course));
            io_thread.remote().spawn(move || run(&job, lane, runner))
        })
        .collect();
    let joined = spawned.into_iter().map(|handle| match handle {
        Ok(handle) => handle.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload)),
        Err(error) => Err(format!("cannot spawn a coroutine: {error}").into()),
    });
    joined.collect()
}

/// Each lane on a thread: this one, if there is one.
fn on_threads(job: &Arc<Job>, lanes: Vec<Lane>, course: &Arc<Course>, run: Run) -> Vec<Result<Part, Error>> {
    let runners: Vec<_> = lanes.iter().map(|_| Course::runner(course)).collect();
    let mut tasks: Vec<_> =
        lanes.into_iter().zip(runners).map(|(lane, runner)| move || run(job, lane, runner)).collect();
    if tasks.len() == 1 {
        return tasks.drain(..).map(|task| task()).collect();
    }
    thread::scope(|scope| {
        let threads: Vec<_> = tasks.into_iter().map(|task| scope.spawn(task)).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|result| result.unwrap_or_else(|payload| std::panic::resume_unwind(payload))).collect()
    })
}

/// Where threads start together. The process' CPU time is taken when they do, and when the last one has ended.
struct Course {
    state: Mutex<CourseState>,
    all_ready: Condvar,
}

struct CourseState {
    not_ready: usize,
    running: usize,
    cpu_at_start: Duration,
    cpu: Duration,
}

/// A thread's place on the course.
struct Runner {
    course: Arc<Course>,
    is_ready: bool,
    has_ended: bool,
}

impl Course {
    fn new(threads: usize) -> Course {
        let state =
            CourseState { not_ready: threads, running: threads, cpu_at_start: Duration::ZERO, cpu: Duration::ZERO };
        Course { state: Mutex::new(state), all_ready: Condvar::new() }
    }

    fn runner(course: &Arc<Course>) -> Runner {
        Runner { course: course.clone(), is_ready: false, has_ended: false }
    }

    fn cpu(&self) -> Duration {
        self.state.lock().cpu
    }
}

impl Runner {
    /// Waits for the others to be ready.
    fn start(&mut self) {
        self.ready();
        let mut state = self.course.state.lock();
        while state.not_ready > 0 {
            self.course.all_ready.wait(&mut state);
        }
    }

    fn ready(&mut self) {
        self.is_ready = true;
        let mut state = self.course.state.lock();
        state.not_ready -= 1;
        if state.not_ready == 0 {
            state.cpu_at_start = cpu_time();
            self.course.all_ready.notify_all();
        }
    }

    /// Says that the thread's part is done: what it takes to clean up isn't measured.
    fn end(&mut self) {
        self.has_ended = true;
        let mut state = self.course.state.lock();
        state.running -= 1;
        if state.running == 0 {
            state.cpu = cpu_time().saturating_sub(state.cpu_at_start);
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // A thread that couldn't begin doesn't keep the others from doing so.
        if !self.is_ready {
            self.ready();
        }
        if !self.has_ended {
            self.end();
        }
    }
}

/// A job's file, as the crate's block layer sees it.
type BlockFile = block::File<Arc<std::fs::File>>;

/// The job's files for one thread.
fn block_files(job: &Job) -> Result<Vec<Rc<BlockFile>>, Error> {
    let open = |file: &Arc<std::fs::File>| -> io::Result<Rc<BlockFile>> {
        let file = block::File::new(file.clone())?;
        Ok(Rc::new(match job.engine {
            Some(engine) => file.with_engine(engine),
            None => file,
        }))
    };
    Ok(job.files.iter().map(|extent| open(&extent.file)).collect::<io::Result<_>>()?)
}

/// What carries out the job, by word of the first file; an error if it isn't what was asked for.
fn engine(job: &Job, files: &[Rc<BlockFile>]) -> Result<String, Error> {
    let choice = files[0].engine(job.operation());
    match job.engine {
        Some(asked) if asked != choice.engine() => {
            Err(format!("the engine {asked} can't be had here: {choice}").into())
        }
        _ => Ok(choice.to_string()),
    }
}

/// Blocks of memory for all slots, filled with what is written unless that depends on the offset.
fn blocks(job: &Job) -> Vec<AlignedBuf> {
    let alignment = 4096;
    (0..job.depth)
        .map(|_| {
            let mut block = AlignedBuf::new(job.block_size, alignment);
            fill(job, &mut block);
            block
        })
        .collect()
}

fn fill(job: &Job, block: &mut [u8]) {
    // Zeroes too: it has the memory made available before the clock starts.
    block.fill(job.byte.unwrap_or(0));
}

/// The system calls of a loop and its requests so far.
fn calls(context: &Local) -> u64 {
    let stats = context.stats();
    stats.waits + stats.signals + stats.notifier_reads + stats.control_calls + stats.block_calls
}

/// The result of a system call.
fn result(returned: i32) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::from_raw_os_error(-returned))
}
