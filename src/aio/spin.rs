//! The part of a turn that polls in user space before it sleeps; see [`super::polling`].

use std::hint;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handler::Node;
use super::shared::{Due, Shared};
use super::turn::MAX_BUSY_TURNS;
use super::waiter::Waiter;

impl Shared {
    /// Polls; then, if that found nothing, waits, at most for so long since the beginning (`None`: without limit).
    pub(super) fn poll_then_wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let start = Instant::now();
        let found = self.spin(start, timeout);
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        let may_sleep = !found && left != Some(Duration::ZERO) && !self.stop_polling();
        let waiting = Instant::now();
        let seen = self.with_local(|local| {
            // Sources are user code.
            if !may_sleep || local.has_more_work(self) {
                if !local.monitor.has_news() && local.busy_turns < MAX_BUSY_TURNS {
                    return local.skip_wait(self);
                }
                return local.wait(self, Some(Duration::ZERO));
            }
            local.wait(self, left)
        });
        let Some(seen) = seen else { return Ok(()) };
        let seen = seen?;
        let now = Instant::now();
        self.with_local(|local| {
            if may_sleep {
                local.polls.blocked += now - waiting;
            }
            let polling = local.parameters.polling;
            let waited = now - start;
            if seen.told {
                local.sources.wakeups.had_event(polling, waited, now);
            }
            let mut plain = false;
            for waiter in &local.fired[..seen.descriptors] {
                match waiter {
                    Waiter::Handler(node, _) if node.has_source() => {
                        let joins = node.with_polled(|polled| {
                            polled.source.had_event(polling, waited, now);
                            !mem::replace(&mut polled.is_in_list, true)
                        });
                        if joins {
                            local.sources.polled.push(node.clone());
                        }
                    }
                    _ => plain = true,
                }
            }
            if plain {
                local.sources.descriptors.had_event(polling, waited, now);
            }
        });
        Ok(())
    }

    /// Looks at all sources until one has something to do or the window closes. Returns whether one has.
    fn spin(&self, start: Instant, timeout: Option<Duration>) -> bool {
        let window = self.with_local(|local| {
            let window = local.sources.window(local.parameters.polling, start);
            let seen_otherwise: usize = local.sources.polled.iter().map(|node| node.watch_count()).sum();
            let hidden = local.monitor.hidden_watches() + local.linux_aio.hidden_requests();
            if window.is_zero() || hidden > seen_otherwise {
                return Ok(Duration::ZERO);
            }
            // What is to be watched has to be watched before a look shows anything.
            local.monitor.submit().map(|()| window)
        });
        // An error comes again with the wait, which reports it.
        let window = window.and_then(Result::ok).unwrap_or_default().min(timeout.unwrap_or(Duration::MAX));
        let mut listed = Listed::of(self);
        listed.leave_idle_ones();
        if window.is_zero() {
            return false;
        }
        listed.begin();
        let found = loop {
            let has_news = self.with_local(|local| local.monitor.has_news() || local.linux_aio.has_news());
            if self.notify.is_told() || has_news.unwrap_or_default() {
                break true;
            }
            if listed.look(start) {
                break true;
            }
            if start.elapsed() >= window {
                break false;
            }
            hint::spin_loop();
        };
        self.with_local(|local| {
            local.polls.polls += 1;
            local.polls.hits += u64::from(found);
            local.polls.polled += start.elapsed();
        });
        found
    }

    /// Tells the sources that the loop is about to sleep. Returns whether one has something to do after all.
    fn stop_polling(&self) -> bool {
        Listed::of(self).stop()
    }
}

/// The loop's list of polled sources, out of the loop while they are called. Put back afterwards, also after a panic.
struct Listed<'a> {
    shared: &'a Shared,
    nodes: Vec<Arc<Node>>,
}

impl<'a> Listed<'a> {
    fn of(shared: &'a Shared) -> Self {
        let nodes = shared.with_local(|local| mem::take(&mut local.sources.polled)).unwrap_or_default();
        Self { shared, nodes }
    }

    /// Takes those out of the list that have had no event for long, or are gone.
    fn leave_idle_ones(&mut self) {
        let shared = self.shared;
        self.nodes.retain(|node| {
            if node.with_polled(|polled| polled.source.is_listed()) && !node.is_removed() {
                return true;
            }
            end(shared, node);
            node.with_polled(|polled| polled.is_in_list = false);
            false
        });
    }

    fn begin(&self) {
        for node in &self.nodes {
            node.with_source(|source| {
                if !node.with_polled(|polled| mem::replace(&mut polled.has_begun, true)) {
                    source.begin();
                }
            });
        }
    }

    /// Looks at each once. Returns whether one has something to do.
    fn look(&self, start: Instant) -> bool {
        let mut found = false;
        for node in &self.nodes {
            found |= look(self.shared, node, start);
        }
        found
    }

    fn stop(&self) -> bool {
        let mut found = false;
        for node in &self.nodes {
            found |= end(self.shared, node);
        }
        found
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.shared.with_local(|local| local.sources.polled.append(&mut self.nodes));
    }
}

/// Looks at a source; queues it, and returns true, if it has something to do.
fn look(shared: &Shared, node: &Arc<Node>, start: Instant) -> bool {
    if node.with_source(|source| source.poll()) != Some(true) {
        return false;
    }
    let now = Instant::now();
    shared.with_local(|local| {
        let polling = local.parameters.polling;
        let is_new = node.with_polled(|polled| {
            polled.source.had_event(polling, now - start, now);
            !mem::replace(&mut polled.is_hit, true)
        });
        if is_new {
            local.due.push_back(Due::Polled(node.clone()));
        }
    });
    true
}

/// Tells a source that it isn't looked at any more, if it was; looks at it for the last time.
fn end(shared: &Shared, node: &Arc<Node>) -> bool {
    let had_begun = node.with_source(|source| {
        let had_begun = node.with_polled(|polled| mem::take(&mut polled.has_begun));
        if had_begun {
            source.end();
        }
        had_begun
    });
    had_begun == Some(true) && look(shared, node, Instant::now())
}
