//! Connections over which a server sends back what it gets, and the load that all servers meet.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use ::mio::net::TcpStream;
use ::mio::{Events, Interest, Poll, Token};

use crate::measure::{Core, CpuClock, Pinned};

/// How many clients there are. Each sends a message when it has the answer to the one before.
pub const CONNECTIONS: u32 = 64;

/// The bytes of a message.
const MESSAGE: usize = 64;

/// The bytes that a server reads at most at once.
pub const BUFFER: usize = 4096;

/// How many messages are sent for each connection before the clocks start.
const WARM_UP: u64 = 2;

/// What so many messages took.
pub struct Report {
    pub elapsed: Duration,
    /// The processor time of the server's thread.
    pub cpu: Duration,
}

/// Has a server, on one core, answer so many messages for each connection, which come from another core. It accepts
/// [`CONNECTIONS`] and serves each until its end.
pub fn run(times: u64, serve: fn(TcpListener)) -> Report {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    let clock = OnceLock::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _pinned = Pinned::to(Core::Last);
            clock.get_or_init(CpuClock::of_this_thread);
            serve(listener);
        });
        let load = scope.spawn(|| {
            let _pinned = Pinned::to(Core::SecondLast);
            let mut clients = Clients::connect(address)?;
            clients.exchange(WARM_UP * u64::from(CONNECTIONS))?;
            let clock = clock.get().expect("it is set before the first answer");
            let (start, cpu) = (Instant::now(), clock.now());
            clients.exchange(times * u64::from(CONNECTIONS))?;
            Ok::<_, io::Error>(Report { elapsed: start.elapsed(), cpu: clock.now() - cpu })
        });
        load.join().expect("it doesn't panic").expect("the server answers")
    })
}

/// The clients: one thread with epoll, edge-triggered.
struct Clients {
    poll: Poll,
    events: Events,
    clients: Vec<Client>,
}

struct Client {
    stream: TcpStream,
    /// How much of the answer has come.
    received: usize,
}

impl Clients {
    fn connect(address: SocketAddr) -> io::Result<Self> {
        let poll = Poll::new()?;
        let connect = |number| {
            let stream = std::net::TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry().register(&mut stream, Token(number as usize), Interest::READABLE)?;
            Ok(Client { stream, received: 0 })
        };
        let clients = (0..CONNECTIONS).map(connect).collect::<io::Result<_>>()?;
        Ok(Self { poll, events: Events::with_capacity(CONNECTIONS as usize), clients })
    }

    /// Sends so many messages, one at a time on each connection, and waits for all answers.
    fn exchange(&mut self, messages: u64) -> io::Result<()> {
        let mut unsent = messages;
        for client in &mut self.clients {
            client.send()?;
            unsent -= 1;
        }
        let mut unanswered = messages;
        while unanswered > 0 {
            match self.poll.poll(&mut self.events, None) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            for event in &self.events {
                let client = &mut self.clients[event.token().0];
                if client.receive()? {
                    unanswered -= 1;
                    if unsent > 0 {
                        client.send()?;
                        unsent -= 1;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Client {
    fn send(&mut self) -> io::Result<()> {
        // One message finds room: the one before has been answered.
        self.stream.write_all(&[0; MESSAGE])
    }

    /// Takes what has come; whether the answer is complete. There is nothing behind it, and what comes later is another
    /// event, so nobody has to ask twice.
    fn receive(&mut self) -> io::Result<bool> {
        match self.stream.read(&mut [0; MESSAGE][self.received..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.received += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        let is_complete = self.received == MESSAGE;
        if is_complete {
            self.received = 0;
        }
        Ok(is_complete)
    }
}

/// The server with nothing to schedule, which has its connections in a table: what the kernel's part is.
pub fn serve_by_mio(listener: TcpListener) {
    let mut poll = Poll::new().expect("an epoll instance can be had");
    let mut events = Events::with_capacity(CONNECTIONS as usize);
    let accept = |number| {
        let (stream, _) = listener.accept().expect("it is a connection");
        stream.set_nonblocking(true).expect("a socket can be non-blocking");
        let mut stream = TcpStream::from_std(stream);
        let registered = poll.registry().register(&mut stream, Token(number as usize), Interest::READABLE);
        registered.expect("a socket can be watched");
        Some(stream)
    };
    let mut streams: Vec<Option<TcpStream>> = (0..CONNECTIONS).map(accept).collect();
    let mut buffer = [0; BUFFER];
    while streams.iter().any(Option::is_some) {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            result => result.expect("epoll can wait"),
        }
        for event in &events {
            let entry = &mut streams[event.token().0];
            // The end of a stream may come as two events.
            let Some(stream) = entry else { continue };
            match stream.read(&mut buffer).expect("the client doesn't reset") {
                0 => *entry = None,
                count => stream.write_all(&buffer[..count]).expect("there is room"),
            }
        }
    }
}
