//! Servers and clients, each a coroutine, all on one thread.

use std::collections::HashSet;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use aioco::aio::Local;
use aioco::coroutine::Builder;
use aioco::fd::Parked;
use aioco::{JoinHandle, yield_now};

use crate::Error;

/// A connection, as the libraries get it.
pub type Stream = Parked<TcpStream>;

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub connections: usize,
    /// Bytes that a client sends, and gets back.
    pub data: usize,
    /// Bytes of each coroutine's stack.
    pub stack: usize,
}

/// What came of a meeting.
#[derive(Debug)]
pub struct Tally {
    /// Connections that were served to their end.
    pub connections: usize,
    /// The most that were being served at the same time.
    pub at_once: usize,
    /// Threads that had a part in it.
    pub threads: usize,
    /// From a client's first word to the end of all.
    pub elapsed: Duration,
}

/// Opens all connections; has `serve` serve one end of each, in a coroutine, and then `call` call at the other.
/// In a coroutine of the context.
///
/// # Errors
///
/// The first that a client or a server had.
pub fn meet(
    context: &Local,
    plan: Plan,
    serve: impl Fn(Stream) -> Result<(), Error> + Send + Sync + 'static,
    call: impl Fn(Stream) -> Result<(), Error> + Send + Sync + 'static,
) -> Result<Tally, Error> {
    let spawn = |name: &str, f: Box<dyn FnOnce() -> Result<(), Error> + Send>| {
        context.spawn_with(Builder::new().name(name).stack_size(plan.stack), f)
    };
    let listener = Parked::<TcpListener>::bind(([127, 0, 0, 1], 0).into())?;
    let address = listener.get_ref().local_addr()?;
    let register = Arc::new(Mutex::new(Register::default()));
    let (serve, call) = (Arc::new(serve), Arc::new(call));
    let (mut servers, mut callers) = (Vec::new(), Vec::new());
    for _ in 0..plan.connections {
        let caller = Parked::<TcpStream>::connect(address)?;
        let (server, _) = listener.accept()?;
        // Questions and answers shouldn't wait for each other.
        caller.get_ref().set_nodelay(true)?;
        server.get_ref().set_nodelay(true)?;
        callers.push(caller);
        let (serve, register) = (serve.clone(), register.clone());
        let served = move || {
            lock(&register).begin();
            let result = serve(server);
            lock(&register).end(result.is_ok());
            result
        };
        servers.push(spawn("server", Box::new(served))?);
    }
    // The servers begin, and come to where they wait for their clients.
    yield_now();
    let start = Instant::now();
    let calls = callers.into_iter().map(|stream| {
        let call = call.clone();
        spawn("client", Box::new(move || call(stream)))
    });
    let calls: Vec<_> = calls.collect::<Result<_, _>>()?;
    // All of them end before the first error is told, which is that of a client: the server's follows from it.
    let results: Vec<_> = calls.into_iter().chain(servers).map(join).collect();
    results.into_iter().collect::<Result<(), Error>>()?;
    let elapsed = start.elapsed();
    let Register { served, most, threads, .. } = &*lock(&register);
    Ok(Tally { connections: *served, at_once: *most, threads: threads.len(), elapsed })
}

/// Who is being served. (Nobody parks while it is locked: a lock of std's would block the thread of its owner.)
#[derive(Debug, Default)]
struct Register {
    now: usize,
    most: usize,
    served: usize,
    threads: HashSet<ThreadId>,
}

impl Register {
    fn begin(&mut self) {
        self.now += 1;
        self.most = self.most.max(self.now);
        self.threads.insert(thread::current().id());
    }

    fn end(&mut self, is_served: bool) {
        self.now -= 1;
        self.served += usize::from(is_served);
        self.threads.insert(thread::current().id());
    }
}

fn lock(register: &Mutex<Register>) -> MutexGuard<'_, Register> {
    register.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn join(handle: JoinHandle<Result<(), Error>>) -> Result<(), Error> {
    handle.join().unwrap_or_else(|_| Err("a coroutine panicked".into()))
}
