//! What the coroutines do: they serve one another, sleep, and deal with the loop's own sources.

use std::env;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::panic;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use aioco::coroutine::{Builder, Cancelled, Home};
use aioco::fd::{self, Parked};
use aioco::sync::{Event, Receiver, channel};
use aioco::{JoinHandle, aio, block, task};

const LINES: usize = 20;
const QUESTIONS: usize = 3;
const TICKS: usize = 3;
const PAUSE: Duration = Duration::from_millis(1);
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

/// What the loop has for its guests.
pub struct Host {
    /// A message for each tick of its timer.
    pub ticks: Receiver<()>,
    /// To its handler, which sends back what it gets.
    pub handler: UnixDatagram,
}

/// What the coroutines have done.
pub struct Report {
    lines: usize,
    answers: usize,
    ticks: usize,
    timeouts: usize,
    result: u64,
    read_by: block::Engine,
    unwound: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, answers, ticks, timeouts, result, read_by, unwound } = self;
        write!(f, "{lines} lines echoed, {answers} answers by the handler, {ticks} ticks, {timeouts} time limits, ")?;
        write!(f, "{result} from a thread, a file read ({read_by}), {unwound} unwound at the end")
    }
}

/// The coroutines, as the loop's thread has them.
pub struct Guests {
    work: JoinHandle<io::Result<Report>>,
    idle: [JoinHandle<()>; 3],
}

impl Guests {
    /// Spawns those that wait until their home ends, and the one that has all others do their work.
    pub fn start(home: Arc<dyn Home>, host: Host) -> io::Result<Self> {
        let (near, far) = UnixStream::pair()?;
        let listen = move || {
            fd::wait_readable(&near).expect("a socket can be waited for");
            drop(far);
        };
        let idle =
            [spawn(&home, listen)?, spawn(&home, || aio::sleep(FOR_EVER))?, spawn(&home, || Event::new().wait())?];
        let builder = Builder::new().name("workload");
        let work = task::spawn_on(&home.clone(), builder, move || run(&home, host))?;
        Ok(Self { work, idle })
    }

    /// Whether there is nothing to do any more.
    pub fn are_done(&self) -> bool {
        self.work.is_finished()
    }

    /// What they have done, when their home has ended.
    pub fn report(self) -> io::Result<Report> {
        let mut report = join(self.work)?;
        let ends = self.idle.into_iter().map(JoinHandle::join);
        report.unwound = ends.filter(|end| end.as_ref().is_err_and(|payload| payload.is::<Cancelled>())).count();
        Ok(report)
    }
}

fn run(home: &Arc<dyn Home>, Host { ticks, handler }: Host) -> io::Result<Report> {
    let (near, far) = UnixStream::pair()?;
    let near = Arc::new(Parked::new(near)?);
    let server = spawn(home, move || echo(far))?;
    let writer = spawn(home, {
        let near = near.clone();
        move || send_lines(&near)
    })?;
    let reader = spawn(home, move || count_lines(&near))?;
    let answers = spawn(home, move || ask(handler))?;
    let ticks = spawn(home, move || (0..TICKS).map_while(|_| ticks.recv().ok()).count())?;
    let timeouts = spawn(home, wait_in_vain)?;
    let result = spawn(home, listen_to_a_thread)?;
    let read_by = spawn(home, read_a_file)?;

    join(writer)?;
    join(server)?;
    Ok(Report {
        lines: join(reader)?,
        answers: join(answers)?,
        ticks: join(ticks),
        timeouts: join(timeouts),
        result: join(result)?,
        read_by: join(read_by)?,
        unwound: 0,
    })
}

fn spawn<T: Send + 'static>(home: &Arc<dyn Home>, f: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    task::spawn_on(home, Builder::new(), f)
}

fn join<T>(handle: JoinHandle<T>) -> T {
    handle.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
}

/// Sends back what comes, until the other side has sent all.
fn echo(stream: UnixStream) -> io::Result<()> {
    let stream = Parked::new(stream)?;
    io::copy(&mut &stream, &mut &stream)?;
    stream.get_ref().shutdown(Shutdown::Write)
}

fn send_lines(stream: &Parked<UnixStream>) -> io::Result<()> {
    for line in 0..LINES {
        writeln!(&*stream, "line {line}")?;
        if line % 5 == 0 {
            aio::sleep(PAUSE);
        }
    }
    stream.get_ref().shutdown(Shutdown::Write)
}

/// Reads from the socket that [`send_lines`] writes to.
fn count_lines(stream: &Parked<UnixStream>) -> io::Result<usize> {
    let mut count = 0;
    for line in BufReader::new(stream).lines() {
        assert_eq!(line?, format!("line {count}"));
        count += 1;
    }
    Ok(count)
}

/// Asks the loop's handler. Returns how many of its answers were right.
fn ask(handler: UnixDatagram) -> io::Result<usize> {
    let handler = Parked::new(handler)?;
    let mut right = 0;
    for question in 0..QUESTIONS {
        let question = [question as u8];
        handler.write_with(|socket| socket.send(&question))?;
        let mut answer = [0; 2];
        let len = handler.read_with(|socket| socket.recv(&mut answer))?;
        right += usize::from(answer[..len] == question);
        aio::sleep(PAUSE);
    }
    Ok(right)
}

/// Waits for what doesn't come, until the time is up. Returns how often it was.
fn wait_in_vain() -> usize {
    let event = Event::new();
    let in_time = [event.wait_for(PAUSE), aio::timeout(PAUSE, || event.wait()).is_ok()];
    in_time.into_iter().filter(|in_time| !in_time).count()
}

/// Waits for what a thread computes.
fn listen_to_a_thread() -> io::Result<u64> {
    let (sender, receiver) = channel(1);
    thread::Builder::new().spawn(move || sender.send((1..=100u64).sum()))?;
    receiver.recv().map_err(io::Error::other)
}

/// Reads the beginning of this program. Returns by what engine.
fn read_a_file() -> io::Result<block::Engine> {
    let file = block::File::new(fs::File::open(env::current_exe()?)?)?;
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0)?;
    assert_eq!(&magic, b"\x7fELF");
    Ok(file.engine(block::Operation::Read).engine())
}
