//! `tokio_disk`: a tokio program that has aioco do its disk I/O.
//!
//! `cargo run --release --example tokio_disk` serves blocks of a disk image to clients over TCP, and copies the image
//! meanwhile.
//!
//! ```text
//!  tokio:     a task for each connection          pace()
//!               │ awaits JoinHandles              ▲    │ oneshot
//!               ▼                         channel │    ▼
//!  IoThread:  a coroutine for each read           copy()
//! ```
//!
//! Sockets and timers are tokio's. The image belongs to an `IoThread`: there, a coroutine reads straight-line, at
//! whatever queue depth the clients make, and no thread of tokio's ever waits for the disk. A coroutine that waits for
//! async code parks, and the reads go on.

use std::io;
use std::net::SocketAddr;
use std::panic;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aioco::aio::IoThread;
use aioco::sync::{Receiver, Sender, channel};
use aioco::{JoinHandle, block, task};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::oneshot;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 4096;
const CLIENTS: u64 = 16;
const READS: u64 = 500;
/// What is copied at a time, and the time between two of them.
const PIECE: usize = 256 * 1024;
const PACE: Duration = Duration::from_millis(1);

fn main() -> io::Result<()> {
    // They outlive the runtime: a disk that is dropped waits for its thread, which isn't for async code to do.
    let disk = Arc::new(Disk::new("disk")?);
    let copied = Disk::new("copy")?;
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(&disk, &copied))
}

async fn run(disk: &Arc<Disk>, copied: &Disk) -> io::Result<()> {
    disk.fill().await?;

    let (asks, asked) = channel(1);
    tokio::spawn(pace(asked));
    let to = copied.image.clone();
    let copying = disk.spawn(move |image| copy(image, &to, &asks))?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(serve(listener, disk.clone()));
    let start = Instant::now();
    let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(use_server(address, number))).collect();
    for client in clients {
        client.await.expect("a client doesn't panic")?;
    }
    let micros = start.elapsed().as_micros();
    println!("{CLIENTS} clients: {} blocks in {micros} µs, each as it was written", CLIENTS * READS);

    finish(copying).await?;
    for number in 0..BLOCKS {
        assert_eq!(copied.read(number).await?, contents(number), "block {number} of the copy");
    }
    println!("the copy is alike");
    Ok(())
}

// ---- the disk, as async code sees it --------------------------------------------------------------------------------

struct Disk {
    io_thread: IoThread,
    image: Arc<block::File>,
}

impl Disk {
    /// An empty one, in a temporary file, with a thread of that name.
    fn new(name: &str) -> io::Result<Self> {
        let image = Arc::new(block::File::new(tempfile::tempfile()?)?);
        Ok(Self { io_thread: IoThread::new(name)?, image })
    }

    /// Has a coroutine do something with the image.
    fn spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce(&block::File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<JoinHandle<io::Result<T>>> {
        let image = self.image.clone();
        self.io_thread.remote().spawn(move || f(&image))
    }

    /// Reads a block. If this is dropped meanwhile, the coroutine reads on, into memory of its own.
    async fn read(&self, number: u64) -> io::Result<Vec<u8>> {
        let reading = self.spawn(move |image| {
            let mut buffer = vec![0; BLOCK];
            image.read_exact_at(&mut buffer, number * BLOCK as u64)?;
            Ok(buffer)
        })?;
        finish(reading).await
    }

    /// Writes all blocks.
    async fn fill(&self) -> io::Result<()> {
        let filling = self.spawn(|image| {
            (0..BLOCKS).try_for_each(|number| image.write_all_at(&contents(number), number * BLOCK as u64))?;
            image.flush()
        })?;
        finish(filling).await
    }
}

/// Awaits a coroutine; a panic in it goes on here.
async fn finish<T>(handle: JoinHandle<io::Result<T>>) -> io::Result<T> {
    handle.await.unwrap_or_else(|payload| panic::resume_unwind(payload))
}

fn contents(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

// ---- async code that waits for coroutines ---------------------------------------------------------------------------

async fn serve(listener: TcpListener, disk: Arc<Disk>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve_client(stream, disk.clone()));
    }
}

/// Answers each number with the block of that number, until the client goes, or asks for what isn't there.
async fn serve_client(mut stream: TcpStream, disk: Arc<Disk>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let number = stream.read_u64().await?;
        if number >= BLOCKS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        stream.write_all(&disk.read(number).await?).await?;
    }
}

async fn use_server(server: SocketAddr, client: u64) -> io::Result<()> {
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let mut block = vec![0; BLOCK];
    for read in 0..READS {
        let number = (client * READS + read) * 7919 % BLOCKS; // all over the image
        stream.write_u64(number).await?;
        stream.read_exact(&mut block).await?;
        assert_eq!(block, contents(number), "block {number}");
    }
    Ok(())
}

// ---- a coroutine that waits for async code --------------------------------------------------------------------------

/// Who asks, and is told when to go on.
type Ask = oneshot::Sender<()>;

/// Copies the image a piece at a time, each when `pace` says so.
fn copy(image: &block::File, to: &block::File, asks: &Sender<Ask>) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    for offset in (0..BLOCKS * BLOCK as u64).step_by(PIECE) {
        let (go, may_go) = oneshot::channel();
        asks.send(go).map_err(io::Error::other)?;
        task::block_on(may_go).map_err(io::Error::other)?;
        image.read_exact_at(&mut piece, offset)?;
        to.write_all_at(&piece, offset)?;
    }
    to.flush()
}

/// Lets those who ask go on, one in each [`PACE`].
async fn pace(asked: Receiver<Ask>) {
    let mut clock = tokio::time::interval(PACE);
    while let Ok(go) = asked.recv_async().await {
        clock.tick().await;
        let _ = go.send(()); // it may have been cancelled
    }
}
