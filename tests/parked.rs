//! `Parked`: sockets and pipes that park, with std's traits, with every monitor and without a loop.

mod common;

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use aioco::coroutine::Interest;
use aioco::fd::{self, Parked};
use common::{assert_cancelled, child, each, each_here, eventfd, scaled, settle, sockets, spawn};

const MILLI: Duration = Duration::from_millis(1);

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

fn pair() -> (Parked<UnixStream>, Parked<UnixStream>) {
    let (one, other) = sockets();
    (Parked::new(one).expect("a socket"), Parked::new(other).expect("a socket"))
}

#[test]
fn what_is_written_is_read_however_large_and_in_both_directions_at_once() {
    each(|context| {
        let (one, other) = pair();
        let (one, other) = (Arc::new(one), Arc::new(other));
        let data: Arc<Vec<u8>> = Arc::new((0..3_000_000_u32).map(|at| (at % 251) as u8).collect());
        let sides: Vec<_> = [&one, &other]
            .into_iter()
            .flat_map(|side| {
                // Two coroutines on one socket.
                let (writer, sent) = (side.clone(), data.clone());
                let writing = spawn(context, move || {
                    (&*writer).write_all(&sent).expect("room");
                    writer.get_ref().shutdown(Shutdown::Write).expect("it is open");
                });
                let (reader, wanted) = (side.clone(), data.clone());
                let reading = spawn(context, move || {
                    let mut read = Vec::new();
                    (&*reader).read_to_end(&mut read).expect("a read");
                    assert!(read == *wanted);
                });
                [writing, reading]
            })
            .collect();
        sides.into_iter().for_each(|handle| handle.join().expect("no panic"));
    });
}

#[test]
fn vectors_and_lines_and_pipes_work_as_in_std() {
    each(|context| {
        let (reader, writer) = io::pipe().expect("a pipe");
        let writing = spawn(context, move || {
            let mut writer = Parked::new(writer).expect("a pipe");
            let slices = [IoSlice::new(b"one\ntw"), IoSlice::new(b"o\n")];
            assert_eq!(writer.write_vectored(&slices).expect("room"), 8);
            aioco::yield_now();
            writeln!(writer, "three").expect("room");
            writer.flush().expect("nothing to do");
        });
        let reading = spawn(context, move || {
            let mut reader = Parked::new(reader).expect("a pipe");
            let (mut first, mut second) = ([0; 3], [0; 2]);
            let slices = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
            assert_eq!(reader.read_vectored(slices).expect("a read"), 5);
            assert_eq!((&first, &second), (b"one", b"\nt"));
            BufReader::new(reader).lines().collect::<io::Result<Vec<_>>>().expect("lines")
        });
        writing.join().expect("no panic");
        assert_eq!(reading.join().expect("no panic"), ["wo", "three"]);
    });
}

#[test]
fn tcp_connects_accepts_and_closes() {
    each(|context| {
        let listener = Parked::<TcpListener>::bind(local()).expect("a listener");
        let address = listener.get_ref().local_addr().expect("it is bound");
        let server = spawn(context, move || {
            for _ in 0..50 {
                let (mut stream, _) = listener.accept().expect("a connection");
                drop(aioco::aio::current().expect("a context").spawn(move || {
                    let mut request = [0; 5];
                    stream.read_exact(&mut request).expect("a request");
                    stream.write_all(&request).expect("room");
                }));
            }
        });
        let clients: Vec<_> = (0..50)
            .map(|number| {
                spawn(context, move || {
                    let mut stream = Parked::<TcpStream>::connect(address).expect("a connection");
                    let request = format!("{number:05}");
                    stream.write_all(request.as_bytes()).expect("room");
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).expect("an answer, and the end");
                    assert_eq!(answer, request);
                })
            })
            .collect();
        clients.into_iter().for_each(|handle| handle.join().expect("no panic"));
        server.join().expect("no panic");
        let refused = context.block_on(|| Parked::<TcpStream>::connect(address));
        assert_eq!(refused.expect_err("nobody listens").kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn unix_sockets_connect_accept_and_send_datagrams() {
    each(|context| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = Parked::<UnixListener>::bind(&path).expect("a listener");
        let in_use = Parked::<UnixListener>::bind(&path);
        assert_eq!(in_use.expect_err("it exists").kind(), ErrorKind::AddrInUse);
        let server = spawn(context, move || {
            let (stream, _) = listener.accept().expect("a connection");
            (&stream).write_all(b"hello").expect("room");
        });
        let client = path.clone();
        let client = spawn(context, move || {
            let mut answer = String::new();
            let mut stream = Parked::<UnixStream>::connect(client).expect("a connection");
            stream.read_to_string(&mut answer).expect("an answer");
            answer
        });
        assert_eq!(client.join().expect("no panic"), "hello");
        server.join().expect("no panic");

        let at = folder.path().join("datagrams");
        let receiver = Parked::new(UnixDatagram::bind(&at).expect("a socket")).expect("a socket");
        let sender = Parked::new(UnixDatagram::unbound().expect("a socket")).expect("a socket");
        // More than there is room for.
        let sending = spawn(context, move || {
            for number in 0..1000_u32 {
                sender.send_to(&number.to_ne_bytes(), &at).expect("a receiver");
            }
        });
        context.block_on(|| {
            for number in 0..1000_u32 {
                let mut buffer = [0; 4];
                assert_eq!(receiver.recv_from(&mut buffer).expect("a datagram").0, 4);
                assert_eq!(u32::from_ne_bytes(buffer), number);
            }
        });
        sending.join().expect("no panic");
    });
}

#[test]
fn udp_waits_for_datagrams() {
    each(|context| {
        let socket = Parked::new(UdpSocket::bind(local()).expect("a socket")).expect("a socket");
        let address = socket.get_ref().local_addr().expect("it is bound");
        let receiving = spawn(context, move || {
            let mut buffer = [0; 10];
            let (len, from) = socket.recv_from(&mut buffer).expect("a datagram");
            socket.send_to(&buffer[..len], from).expect("room");
        });
        settle(context);
        let other = Parked::new(UdpSocket::bind(local()).expect("a socket")).expect("a socket");
        context.block_on(|| {
            other.send_to(b"ping", address).expect("room");
            let mut buffer = [0; 10];
            assert_eq!(other.recv_from(&mut buffer).expect("a datagram"), (4, address));
        });
        receiving.join().expect("no panic");
    });
}

#[test]
fn a_timeout_is_an_error_and_the_next_operation_goes_on() {
    each(|context| {
        let (ours, theirs) = pair();
        context.block_on(|| {
            ours.set_timeout(Interest::Readable, Some(2 * MILLI));
            let error = (&ours).read(&mut [0]).expect_err("nothing comes");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            (&theirs).write_all(b"x").expect("room");
            assert_eq!((&ours).read(&mut [0; 2]).expect("a byte"), 1);
            ours.set_timeout(Interest::Writable, Some(2 * MILLI));
            let error = (0..).find_map(|_| (&ours).write_all(&[0; 65536]).err()).expect("it is full");
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            ours.set_timeout(Interest::Readable, None);
            ours.set_timeout(Interest::Writable, Some(Duration::MAX));
        });
        assert!(!fd::wait_readable_until(&ours, std::time::Instant::now() + MILLI).expect("a wait"));
        assert!(
            fd::wait_readable_until(&theirs, std::time::Instant::now() + MILLI).expect("a wait"),
            "plain threads wait, too"
        );
    });
}

/// A stream that was waited for several times and has just been read to its last byte, and the other end of it. In a
/// coroutine.
fn drained() -> (Parked<TcpStream>, TcpStream) {
    let listener = TcpListener::bind(local()).expect("a listener");
    let mut theirs = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("a connection");
    let (ours, _) = Parked::new(listener).expect("a listener").accept().expect("a connection");
    let context = aioco::aio::current().expect("a context");
    for _ in 0..3 {
        let writing = context.spawn(move || theirs.write_all(b"x").map(|()| theirs)).expect("a stack");
        assert_eq!((&ours).read(&mut [0; 8]).expect("a byte"), 1);
        theirs = writing.join().expect("no panic").expect("room");
    }
    (ours, theirs)
}

#[test]
fn a_coroutine_that_has_read_all_there_was_lets_the_others_go_on_and_then_reads_what_has_come() {
    each(|context| {
        context.block_on(|| {
            let (mut ours, mut theirs) = drained();
            let other =
                aioco::aio::current().expect("a context").spawn(move || theirs.write_all(b"z").map(|()| theirs));
            let other = other.expect("a stack");
            let mut buffer = [0; 8];
            assert_eq!(ours.read(&mut buffer).expect("a byte"), 1);
            assert_eq!(buffer[0], b'z');
            let theirs = other.join().expect("no panic").expect("room");
            drop(theirs);
            assert_eq!(ours.read(&mut buffer).expect("the end"), 0);
            assert_eq!(ours.read(&mut buffer).expect("the end, again"), 0);
        });
    });
}

#[test]
fn what_is_there_is_read_in_no_time_in_a_callback_and_in_a_drop_guard() {
    struct Reads(Parked<TcpStream>, Sender<io::Result<usize>>);

    impl Drop for Reads {
        fn drop(&mut self) {
            self.1.send(self.0.read(&mut [0; 8])).expect("somebody wants to know");
        }
    }

    each(|context| {
        let (sender, receiver) = mpsc::channel();
        let (mut ours, mut theirs) = context.block_on(|| {
            let (mut ours, mut theirs) = drained();
            theirs.write_all(b"z").expect("room");
            ours.set_timeout(Interest::Readable, Some(Duration::ZERO));
            assert_eq!(ours.read(&mut [0; 8]).expect("it is there already"), 1);
            ours.set_timeout(Interest::Readable, None);
            (ours, theirs)
        });
        theirs.write_all(b"z").expect("room");
        let in_callback = sender.clone();
        context.schedule_once(move || in_callback.send(ours.read(&mut [0; 8])).expect("somebody wants to know"));
        context.poll(false);
        assert_eq!(receiver.recv().expect("the callback has run").expect("it is there already"), 1);

        let unwinding = context.spawn(move || {
            let (ours, mut theirs) = drained();
            let _reads = Reads(ours, sender);
            theirs.write_all(b"z").expect("room");
            panic!("at the worst time");
        });
        unwinding.expect("a stack").join().expect_err("it panics");
        assert_eq!(receiver.recv().expect("the guard has run").expect("it is there already"), 1);
    });
}

#[test]
fn a_wait_of_a_cancelled_coroutine_ends_and_the_descriptor_is_closed() {
    each(|context| {
        let (ours, theirs) = pair();
        let reading = spawn(context, move || (&ours).read(&mut [0]).map(drop));
        settle(context);
        reading.cancel();
        assert_cancelled(reading.join());
        context.poll(false);
        context.block_on(|| assert_eq!((&theirs).read(&mut [0]).expect("the end"), 0));
    });
}

/// Field report 87: a connection that comes as its accept is cancelled stays in the queue, or is closed.
#[test]
fn an_accept_that_is_cancelled_as_a_connection_comes_leaks_none() {
    let open_files = || std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count();
    let exit = child("", |_| {
        each_here(|context| {
            let listener = Arc::new(Parked::<TcpListener>::bind(local()).expect("a listener"));
            let address = listener.get_ref().local_addr().expect("it is bound");
            let before = open_files();
            let turns = |count| (0..count).for_each(|_| _ = context.poll(false));
            let mut accepted = 0;
            for round in 0..scaled(2000) {
                let own = listener.clone();
                let accepting = spawn(context, move || own.accept().map(drop));
                turns(round % 3);
                let client = TcpStream::connect(address).expect("there is room in the queue");
                turns(round / 3 % 4);
                accepting.cancel();
                match accepting.join() {
                    Ok(connection) => {
                        connection.expect("a connection");
                        accepted += 1;
                    }
                    cancelled => {
                        assert_cancelled(cancelled);
                        context.block_on(|| listener.accept()).expect("it is still there");
                    }
                }
                drop(client);
            }
            assert!(accepted > 0, "both happen");
            settle(context);
            assert_eq!(open_files(), before);
        });
    });
    exit.assert_success();
}

#[test]
fn other_kinds_of_descriptors_and_operations_of_ones_own() {
    each(|context| {
        let event = Arc::new(Parked::new(File::from(eventfd())).expect("an eventfd"));
        let waiting = event.clone();
        let waiting = spawn(context, move || {
            let mut count = [0; 8];
            waiting.read_with(|mut file| file.read_exact(&mut count)).expect("a count");
            u64::from_ne_bytes(count)
        });
        settle(context);
        event.write_with(|mut file| file.write_all(&5_u64.to_ne_bytes())).expect("room");
        assert_eq!(waiting.join().expect("no panic"), 5);
        let calls = std::cell::Cell::new(0);
        let interrupted = event.read_with(|_| {
            calls.set(calls.get() + 1);
            if calls.get() < 3 { Err(io::Error::from(ErrorKind::Interrupted)) } else { Ok(()) }
        });
        interrupted.expect("it is repeated");
        assert_eq!(calls.get(), 3);
        let failed: io::Result<()> = event.write_with(|_| Err(ErrorKind::Unsupported.into()));
        assert_eq!(failed.expect_err("it is passed on").kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn whoever_is_no_coroutine_blocks_and_gets_the_descriptor_back_as_it_was() {
    let (ours, mut theirs) = sockets();
    let ours = Parked::new(ours).expect("a socket");
    let thread = thread::spawn(move || {
        let mut byte = [0];
        (&ours).read_exact(&mut byte).expect("a byte");
        ours.into_inner().expect("a socket")
    });
    thread::sleep(5 * MILLI);
    theirs.write_all(b"x").expect("room");
    let mut ours = thread.join().expect("no panic");
    let thread = thread::spawn(move || {
        thread::sleep(5 * MILLI);
        theirs.write_all(b"y").expect("room");
    });
    let mut byte = [0];
    ours.read_exact(&mut byte).expect("it blocks again");
    assert_eq!(&byte, b"y");
    thread.join().expect("no panic");
    // Borrowed.
    let (ours, theirs) = sockets();
    let parked = Parked::new(ours.as_fd()).expect("a socket");
    drop(theirs);
    parked.readable().expect("a hang-up");
}
