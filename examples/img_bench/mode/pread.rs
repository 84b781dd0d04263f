//! System calls that block, one after the other: what a program does that knows nothing else.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::{Part, Runner, blocks};
use crate::Error;
use crate::job::Job;
use crate::lane::{Lane, Next};

pub fn run(job: &Arc<Job>, mut lane: Lane, mut runner: Runner) -> Result<Part, Error> {
    let mut block = blocks(job).swap_remove(0);
    let mut calls = 0;

    runner.start();
    let mut now = lane.begin();
    loop {
        match lane.next(now) {
            Next::Transfer(step) => {
                if let Some(at) = step.not_before {
                    thread::sleep(at.saturating_duration_since(now));
                    now = Instant::now();
                }
                Lane::prepare(job, &step, &mut block);
                let file = &job.files[step.file].file;
                let moved = match step.is_write {
                    true => file.write_at(&block, step.offset),
                    false => file.read_at(&mut block, step.offset),
                };
                calls += 1;
                let done = Instant::now();
                lane.finished(&step, done - now, moved, &block);
                now = done;
            }
            Next::Flush { .. } => {
                calls += job.files.len() as u64;
                lane.flushed(job.files.iter().try_for_each(|extent| extent.file.sync_data()));
                now = Instant::now();
            }
            Next::Hold => unreachable!("nothing is under way that could be waited for"),
            Next::End => break,
        }
    }
    let ended = Instant::now();
    runner.end();

    let engine = "pread and pwrite (asked for by the mode)".to_owned();
    Ok(Part { figures: lane.into_figures(ended)?, calls, engine })
}
