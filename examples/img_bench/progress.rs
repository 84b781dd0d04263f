//! A progress bar for what lasts longer than a second, if someone is watching.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Nothing shorter than this is worth a bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Goes away without a trace when dropped.
pub struct Progress {
    what: &'static str,
    total: u64,
    appears: Option<Instant>,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub fn new(what: &'static str, total: u64) -> Progress {
        let appears = stderr().is_terminal().then(|| Instant::now() + PATIENCE);
        Progress { what, total, appears, bar: None }
    }

    /// When the bar will be there, if it ever will.
    pub fn appears(&self) -> Option<Instant> {
        self.appears
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
