//! A progress bar for what lasts longer than a second, if someone is watching.

use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use crate::job::Job;
use crate::plan::Limit;

/// Nothing shorter than this is worth a bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time between two looks at a run.
const FRAME: Duration = Duration::from_millis(100);

/// What a run counts for in the bar of all runs.
const STEPS: u64 = 1000;

/// Goes away without a trace when dropped.
pub struct Progress {
    what: &'static str,
    total: u64,
    appears: Option<Instant>,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub fn new(what: &'static str, total: u64, is_quiet: bool) -> Progress {
        let is_watched = !is_quiet && stderr().is_terminal();
        let appears = is_watched.then(|| Instant::now() + PATIENCE);
        Progress { what, total, appears, bar: None }
    }

    pub fn show(&mut self, done: u64) {
        if self.appears.is_none_or(|at| Instant::now() < at) {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}%")
                .expect("the template is a constant, and well-formed");
            ProgressBar::new(self.total).with_style(style).with_message(self.what)
        });
        bar.set_position(done.min(self.total));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The bar of many runs, which a thread draws, so that the runs needn't.
pub struct Watch {
    state: Arc<Mutex<State>>,
    /// Its thread, which ends when the sender is dropped.
    thread: Option<(Sender<()>, thread::JoinHandle<()>)>,
}

#[derive(Default)]
struct State {
    runs_done: u64,
    current: Option<(Arc<Job>, Instant)>,
}

impl Watch {
    /// A bar of so many runs, unless nobody looks.
    pub fn new(runs: usize, is_quiet: bool) -> Watch {
        let state = Arc::new(Mutex::new(State::default()));
        let mut progress = Progress::new("measuring", runs as u64 * STEPS, is_quiet);
        let thread = progress.appears.is_some().then(|| {
            let (sender, receiver) = mpsc::channel();
            let shown = state.clone();
            let draw = move || {
                while let Err(RecvTimeoutError::Timeout) = receiver.recv_timeout(FRAME) {
                    let steps = shown.lock().steps();
                    progress.show(steps);
                }
            };
            (sender, thread::spawn(draw))
        });
        Watch { state, thread }
    }

    /// A run begins.
    pub fn begin(&self, job: &Arc<Job>) {
        self.state.lock().current = Some((job.clone(), Instant::now()));
    }

    /// It has ended.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.current = None;
        state.runs_done += 1;
    }
}

impl State {
    fn steps(&self) -> u64 {
        let of_current = self.current.as_ref().map_or(0.0, |(job, since)| match job.limit {
            Limit::Count(count) => job.signals.done() as f64 / count as f64,
            Limit::Time(time) => since.elapsed().as_secs_f64() / time.as_secs_f64(),
        });
        self.runs_done * STEPS + (of_current.clamp(0.0, 1.0) * STEPS as f64) as u64
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // If it has panicked, that was said.
            let _ = thread.join();
        }
    }
}
