//! The server: from a plan to an orderly end.

use std::io::{self, Write, stdout};
use std::process;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use aioco::aio::IoThread;
use aioco::fd::Parked;
use aioco::{AioContext, JoinHandle};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::Error;
use crate::cli::Plan;
use crate::export::Export;
use crate::limits::Limits;
use crate::listener::Listener;
use crate::log;
use crate::worker::{self, Inbox};

/// Serves until a signal comes.
pub fn run(plan: &Plan) -> Result<(), Error> {
    // Before there are threads: they inherit it.
    let signals = Arc::new(block_signals()?);
    raise_file_limit();
    let exports: Arc<[Arc<Export>]> = plan
        .exports
        .iter()
        .map(|(name, path)| Export::open(name.clone(), path, plan.mode).map(Arc::new))
        .collect::<Result<_, _>>()?;
    let tcp = plan.tcp.iter().map(|&address| Listener::tcp(address));
    let unix = plan.sockets.iter().map(|path| Listener::unix(path));
    let listeners: Vec<Listener> = tcp.chain(unix).collect::<Result<_, _>>()?;
    let workers = (0..plan.threads).map(|number| Running::start(number, &exports, plan.limits));
    let workers: Vec<Running> = workers.collect::<Result<_, _>>()?;

    let context = AioContext::new()?;
    for listener in &listeners {
        // Whoever started us may not be interested.
        let _ = writeln!(stdout(), "{}", listener.uri()?);
    }
    context.block_on(|| -> Result<(), Error> {
        let inboxes: Arc<[Arc<Inbox>]> = workers.iter().map(|worker| worker.inbox.clone()).collect();
        let connections = Arc::new(AtomicUsize::new(0));
        let accept = |listener: Listener| {
            let (inboxes, connections) = (inboxes.clone(), connections.clone());
            let limit = plan.limits.connections;
            context.spawn(move || listener.accept_all(&inboxes, &connections, limit))
        };
        let accepting: Vec<JoinHandle<()>> = listeners.into_iter().map(accept).collect::<Result<_, _>>()?;

        let signal = wait_for_signal(&signals)?;
        log::note(format_args!("{signal}: stops; once more, and it ends at once"));
        for handle in accepting {
            handle.cancel();
            // It was cancelled.
            let _ = handle.join();
        }
        let impatient = context.spawn(move || {
            if wait_for_signal(&signals).is_ok() {
                process::exit(1);
            }
        })?;
        exports.iter().for_each(|export| export.hurry());
        workers.iter().for_each(|worker| worker.inbox.stop());
        for worker in workers {
            worker.join()?;
        }
        impatient.cancel();
        Ok(())
    })?;
    for export in exports.iter().filter(|export| !export.read_only) {
        export.flush().map_err(|failure| format!("cannot flush {}: {}", export.path.display(), failure.reason))?;
    }
    Ok(())
}

/// A worker on its thread.
struct Running {
    inbox: Arc<Inbox>,
    handle: JoinHandle<()>,
    thread: IoThread,
}

impl Running {
    fn start(number: usize, exports: &Arc<[Arc<Export>]>, limits: Limits) -> Result<Self, Error> {
        let thread = IoThread::new(format!("io-{number}"))?;
        let inbox = Arc::new(Inbox::default());
        let (for_worker, exports) = (inbox.clone(), exports.clone());
        let handle = thread.remote().spawn(move || worker::run(&for_worker, exports, limits))?;
        Ok(Self { inbox, handle, thread })
    }

    fn join(self) -> Result<(), Error> {
        self.handle.join().map_err(|_| "a worker panicked")?;
        self.thread.join().map_err(|_| "an I/O thread panicked")?;
        Ok(())
    }
}

fn block_signals() -> Result<Parked<SignalFd>, Error> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block().map_err(io::Error::from)?;
    let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(io::Error::from)?;
    Ok(Parked::new(fd)?)
}

fn wait_for_signal(signals: &Parked<SignalFd>) -> io::Result<Signal> {
    let info = signals.read_with(|fd| fd.read_signal()?.ok_or_else(|| io::ErrorKind::WouldBlock.into()))?;
    Ok(Signal::try_from(info.ssi_signo as i32)?)
}

/// Each connection takes a descriptor, and the limit is low where nobody has raised it.
fn raise_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        log::note(format_args!("the limit of {soft} open files can't be raised: {error}"));
    }
}
