//! Clients that nobody should write.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use super::client::*;
use super::server::{Folder, Server, bytes_of, noise};

const MIB: usize = 1 << 20;

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

/// A server of one image of noise, 1 MiB; `args` are added.
fn serve(folder: &Folder, args: &[&str]) -> Server {
    let disk = folder.image("disk", MIB);
    Server::start(folder, &[&[&*disk], args].concat())
}

/// Asserts that the server is well: somebody else can read.
fn assert_serves(server: &Server) {
    let mut client = Client::go(server, "");
    client.request(READ, 0, 77, 512, 512);
    assert_eq!(client.error(77), 0);
    assert_eq!(client.take_vec(512), noise(1024)[512..]);
    client.request(DISCONNECT, 0, 0, 0, 0);
    client.assert_hung_up();
}

#[test]
fn options_of_all_kinds() {
    let folder = Folder::new();
    let server = serve(&folder, &[]);
    let mut client = Client::haggle(&server);
    for unknown in [0, 4, 5, 11, 12, u32::MAX] {
        assert_eq!(client.verdict(unknown, b"whatever"), UNSUPPORTED);
    }
    assert_eq!(client.verdict(LIST, b"x"), INVALID);
    assert_eq!(client.verdict(STRUCTURED_REPLY, b"x"), INVALID);
    assert_eq!(client.option(LIST, b""), [(2, b"\0\0\0\x04disk".to_vec()), (ACK, vec![])]);
    assert_eq!(client.verdict(INFO, &question("nobody", &[])), UNKNOWN);
    assert_eq!(client.verdict(GO, &question("nobody", &[])), UNKNOWN);
    for wrong in [&b""[..], b"\xff\xff\xff\xff\0\0", b"\0\0\0\x05disk\0", b"\0\0\0\x04disk\0\x02\0\x01"] {
        assert_eq!(client.verdict(GO, wrong), INVALID, "{wrong:?}");
    }
    assert_eq!(client.verdict(GO, &[0; 100_000]), TOO_BIG);
    assert_eq!(client.verdict(99, &[0; 1 << 20]), UNSUPPORTED);
    let about = client.option(INFO, &question("disk", &[1, 3, 4711]));
    assert_eq!(about.len(), 4, "{about:?}");
    assert_eq!(about[0].1[..10], [&[0, 0][..], &(MIB as u64).to_be_bytes()].concat());
    assert_eq!(about[1].1, b"\0\x01disk");
    assert_eq!(about[2].1, b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0");
    assert_eq!(client.verdict(ABORT, b""), ACK);
    client.assert_hung_up();

    // In the old way, with its zeroes.
    let mut client = Client::connect(&server);
    client.send(&FIXED.to_be_bytes());
    client.send_option(EXPORT_NAME, 4, b"disk");
    let answer = client.take::<134>();
    assert_eq!(answer[..8], (MIB as u64).to_be_bytes());
    assert_eq!(answer[10..], [0; 124]);
    client.request(READ, 0, 1, 0, 4);
    assert_eq!(client.error(1), 0);
    drop(client);
    assert_serves(&server);
    server.stop();
}

#[test]
fn handshakes_that_are_none() {
    let folder = Folder::new();
    let server = serve(&folder, &[]);
    let say = |bytes: &[u8], log: &str| {
        let mut client = Client::connect(&server);
        client.send(bytes);
        client.assert_hung_up();
        server.wait_for_log(log);
    };
    let option = |number: u32, len: u32| {
        [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &number.to_be_bytes(), &len.to_be_bytes()].concat()
    };
    say(&0x1000_0003_u32.to_be_bytes(), "0x10000003");
    say(b"\0\0\0\x03GET / HTTP/1.0\r\n\r\n", "isn't how an option begins");
    say(&option(GO, u32::MAX), "4294967295 bytes of data");
    say(&option(EXPORT_NAME, 4097), "4097 bytes");
    say(&[&option(EXPORT_NAME, 5)[..], b"d\xff\nsk"].concat(), "there is no export");
    // Cut in the middle.
    for len in 1..option(GO, 10).len() {
        let mut client = Client::connect(&server);
        client.send(&option(GO, 10)[..len]);
        client.0.shutdown(Shutdown::Write).unwrap();
        client.assert_hung_up();
    }
    server.wait_for_log("cut in the middle of a message");
    assert_serves(&server);
    server.stop();
}

#[test]
fn requests_that_make_no_sense() {
    let folder = Folder::new();
    let server = serve(&folder, &[]);
    let size = MIB as u64;
    let mut client = Client::go(&server, "disk");
    for (command, flags, offset, len, error) in [
        (READ, 0, size, 1, EINVAL),
        (READ, 0, size - 1, 2, EINVAL),
        (READ, 0, u64::MAX, u32::MAX, EINVAL),
        (READ, 0, u64::MAX, 10, EINVAL),
        (READ, 0, 0, 0, 0),
        (READ, 0x8000, 0, 1, EINVAL),
        (READ, 2, 0, 1, EINVAL),
        (TRIM, 0, size - 1, 2, EINVAL),
        (TRIM, 0, 0, u32::MAX, EINVAL),
        (TRIM, 1, size, 0, 0),
        (WRITE_ZEROES, 0, size, 1, ENOSPC),
        (WRITE_ZEROES, 0, u64::MAX, u32::MAX, ENOSPC),
        (WRITE_ZEROES, 4, 0, 1, EINVAL),
        (FLUSH, 0, 1, 0, EINVAL),
        (FLUSH, 0, 0, 1, EINVAL),
        (FLUSH, 1, 0, 0, 0),
        (5, 0, 0, 1, EINVAL),
        (7, 0, 0, 1, EINVAL),
        (0xffff, 0xffff, u64::MAX, u32::MAX, EINVAL),
    ] {
        client.request(command, flags, offset, offset, len);
        assert_eq!(client.error(offset), error, "command {command}, flags {flags}, {len} bytes at {offset}");
    }
    // What is wrong with a write is said after its payload.
    for (flags, offset, error) in [(0, size, ENOSPC), (0, u64::MAX - 5, ENOSPC), (0x40, 0, EINVAL)] {
        client.request(WRITE, flags, 5, offset, 100_000);
        client.send(&[0xee; 100_000]);
        assert_eq!(client.error(5), error);
    }
    client.request(READ, 0, 6, 0, MIB as u32);
    assert_eq!(client.error(6), 0);
    assert!(client.take_vec(MIB) == noise(MIB), "refused, and done nevertheless");
    // A write that nobody would wait for.
    client.request(WRITE, 0, 7, 0, u32::MAX);
    client.assert_hung_up();
    server.wait_for_log("4294967295 bytes at once");
    let mut client = Client::go(&server, "disk");
    client.send(b"these aren't the requests you're looking for");
    client.assert_hung_up();
    server.wait_for_log("isn't how a request begins");
    assert_serves(&server);
    server.stop();
}

/// Clients that know their manners don't even ask.
#[test]
fn who_may_only_read_is_refused_the_rest() {
    let folder = Folder::new();
    let server = serve(&folder, &["--read-only"]);
    let mut client = Client::go(&server, "disk");
    client.request(WRITE, 0, 1, 0, 512);
    client.send(&[0xee; 512]);
    assert_eq!(client.error(1), EPERM);
    for command in [TRIM, WRITE_ZEROES] {
        client.request(command, 0, 2, 0, 512);
        assert_eq!(client.error(2), EPERM);
    }
    client.request(FLUSH, 0, 3, 0, 0);
    assert_eq!(client.error(3), 0);
    assert_serves(&server);
    server.stop();
}

#[test]
fn structured_replies() {
    let folder = Folder::new();
    let server = serve(&folder, &[]);
    let mut client = Client::haggle(&server);
    assert_eq!(client.verdict(STRUCTURED_REPLY, b""), ACK);
    assert_eq!(client.verdict(GO, &question("", &[3])), ACK);
    client.request(READ, 4, 1, 100, 200);
    let (flags, kind, payload) = client.chunk(1);
    assert_eq!((flags, kind, &payload[..8]), (1, 1, &100_u64.to_be_bytes()[..]));
    assert_eq!(payload[8..], noise(MIB)[100..300]);
    for (offset, len, error) in [(MIB as u64, 1, EINVAL), (0, 33 << 20, 75)] {
        client.request(READ, 0, 2, offset, len);
        let (flags, kind, payload) = client.chunk(2);
        assert_eq!((flags, kind, &payload[..4]), (1, 0x8001, &error.to_be_bytes()[..]));
        assert_eq!(payload.len() - 6, usize::from(u16::from_be_bytes([payload[4], payload[5]])));
    }
    server.stop();
}

#[test]
fn who_wants_to_know_about_holes_has_to_say_so_first() {
    let context = |id: u32| (META_CONTEXT, [&id.to_be_bytes()[..], b"base:allocation"].concat());
    let folder = Folder::new();
    let (disk, other) = (folder.empty_image("disk", MIB as u64), folder.image("other", 512));
    let server = Server::start(&folder, &[&disk, &other]);
    let mut client = Client::haggle(&server);
    for number in [LIST_META_CONTEXT, SET_META_CONTEXT] {
        assert_eq!(client.verdict(number, &queries("disk", &[])), INVALID, "there are no structured replies yet");
    }
    assert_eq!(client.verdict(STRUCTURED_REPLY, &[]), ACK);
    for number in [LIST_META_CONTEXT, SET_META_CONTEXT] {
        assert_eq!(client.verdict(number, b"\0\0\0\0"), INVALID);
        assert_eq!(client.verdict(number, b"\0\0\0\0\xff\xff\xff\xff\0\0\0\0"), INVALID);
        assert_eq!(client.verdict(number, &queries("missing", &[])), UNKNOWN);
        assert_eq!(client.verdict(number, &queries("disk", &["x"; 3000])), TOO_BIG);
        assert_eq!(client.option(number, &queries("disk", &["qemu:dirty-bitmap:x", "base:x"])).len(), 1);
    }
    for asked in [&[][..], &["base:"], &["x:", "base:allocation"]] {
        assert_eq!(client.option(LIST_META_CONTEXT, &queries("disk", asked))[0], context(0));
    }
    assert_eq!(client.option(SET_META_CONTEXT, &queries("disk", &["base:"])).len(), 1);
    let choice = client.option(SET_META_CONTEXT, &queries("", &["base:allocation"]));
    assert_eq!(choice, [context(1), (ACK, vec![])]);
    assert_eq!(client.verdict(GO, &question("disk", &[])), ACK);

    let hole = |len: u32| [1, len, 3].map(u32::to_be_bytes).concat();
    client.request(BLOCK_STATUS, 0, 1, 0, MIB as u32);
    assert_eq!(client.chunk(1), (1, 5, hole(MIB as u32)));
    client.request(BLOCK_STATUS, 8, 2, 5, 7);
    assert_eq!(client.chunk(2), (1, 5, hole(7)), "only one, and not more than was asked for");
    for (cookie, flags, offset, len) in [(3, 0, 0, 0), (4, 0, MIB as u64, 1), (5, 2, 0, 1), (6, 0, u64::MAX, u32::MAX)]
    {
        client.request(BLOCK_STATUS, flags, cookie, offset, len);
        let (_, kind, payload) = client.chunk(cookie);
        assert_eq!((kind, &payload[..4]), (32769, &EINVAL.to_be_bytes()[..]));
    }
    client.request(WRITE, 0, 7, 0, 1);
    client.send(b"x");
    assert_eq!(client.error(7), 0);
    client.request(BLOCK_STATUS, 8, 8, 0, 1);
    assert_eq!(client.chunk(8).2[8..], [0; 4], "it is data now");

    // Who chose it for another export, or took back the choice.
    let too_much = queries("disk", &["x"; 3000]);
    for (export, then) in [("other", None), ("disk", Some(queries("disk", &[]))), ("disk", Some(too_much))] {
        let mut client = Client::haggle(&server);
        assert_eq!(client.verdict(STRUCTURED_REPLY, &[]), ACK);
        assert_eq!(client.option(SET_META_CONTEXT, &queries(export, &["base:allocation"])).len(), 2);
        if let Some(data) = then {
            client.option(SET_META_CONTEXT, &data);
        }
        assert_eq!(client.verdict(GO, &question("disk", &[])), ACK);
        client.request(BLOCK_STATUS, 0, 1, 0, 1);
        assert_eq!(client.chunk(1).1, 32769);
    }
    server.stop();
}

#[test]
fn connections_that_are_cut() {
    let folder = Folder::new();
    let server = serve(&folder, &[]);
    let write = [request(WRITE, 1, 1, 0, 50_000), vec![0xaa; 50_000]].concat();
    for len in [1, 27, 28, 29, 20_000, 50_027] {
        let mut client = Client::go(&server, "");
        client.send(&write[..len]);
        client.0.shutdown(Shutdown::Both).unwrap();
    }
    // Who asks for much, and leaves.
    for _ in 0..20 {
        let mut client = Client::go(&server, "");
        (0..64).for_each(|cookie| client.request(READ, 0, cookie, 0, MIB as u32));
    }
    server.wait_for_log("can't be sent");
    assert_serves(&server);
    assert!(bytes_of(&folder.path("disk"), 0, MIB) == noise(MIB), "half a write is none");
    server.stop();
}

#[test]
fn who_does_not_read_gets_no_more_memory() {
    let folder = Folder::new();
    let server = serve(&folder, &["--memory", "32", "--patience", "1"]);
    let before = server.memory();
    let greedy: Vec<_> = (0..8).map(|_| Client::go(&server, "")).collect();
    let senders: Vec<_> = greedy
        .into_iter()
        .map(|mut client| {
            thread::spawn(move || {
                // 10 GB, unless the server stops listening.
                let requests: Vec<u8> =
                    (0..10_000).flat_map(|cookie| request(READ, 0, cookie, 0, MIB as u32)).collect();
                let sent = client.0.write_all(&requests);
                (client, sent)
            })
        })
        .collect();
    let mut most = 0;
    while !senders.iter().all(|sender| sender.is_finished()) {
        most = most.max(server.memory());
        thread::sleep(Duration::from_millis(5));
    }
    server.wait_for_log("can't be sent: ");
    assert!(most < before + (50 << 20), "{most} bytes, {before} before");
    for sender in senders {
        let (client, sent) = sender.join().unwrap();
        assert!(sent.is_err(), "it took all the requests");
        drop(client);
    }
    assert_serves(&server);
    server.stop();
}

#[test]
fn who_begins_and_does_not_go_on_is_cut() {
    let folder = Folder::new();
    let server = serve(&folder, &["--patience", "0.3"]);
    let mut idle = Client::go(&server, "");
    let silent = Client::haggle(&server);
    let mut half = Client::go(&server, "");
    half.send(&request(READ, 0, 1, 0, 1)[..10]);
    let mut payload = Client::go(&server, "");
    payload.request(WRITE, 0, 1, 0, 1 << 20);
    let mut dripping = Client::go(&server, "");
    dripping.request(WRITE, 0, 1, 0, 1000);
    let dripped = (0..1000).find(|_| {
        thread::sleep(Duration::from_millis(20));
        dripping.0.write_all(b"x").is_err()
    });
    assert!(dripped.is_some(), "it waited for each byte");
    [silent, half, payload].into_iter().for_each(Client::assert_hung_up);
    // Who has begun nothing may wait.
    idle.request(FLUSH, 0, 1, 0, 0);
    assert_eq!(idle.error(1), 0);
    server.wait_for_log("kept us waiting");
    server.stop();
}

#[test]
fn noise_instead_of_a_client() {
    let folder = Folder::new();
    let server = serve(&folder, &["--threads", "2"]);
    let noise = noise(300 * 1000);
    for (number, bytes) in noise.chunks(1000).enumerate() {
        let mut client = match number % 3 {
            0 => Client::connect(&server),
            1 => Client::haggle(&server),
            _ => Client::go(&server, ""),
        };
        let mut bytes = bytes.to_vec();
        if number % 2 == 0 {
            // So that more than the magic number is looked at.
            let magic = if number % 3 == 1 { &b"IHAVEOPT"[..] } else { &[0x25, 0x60, 0x95, 0x13] };
            bytes.splice(..magic.len(), magic.iter().copied());
        }
        let _ = client.0.write_all(&bytes);
        let _ = client.0.shutdown(Shutdown::Write);
        let _ = client.0.read_to_end(&mut Vec::new());
    }
    let log = server.log();
    assert!(log.lines().count() < 1000 && log.contains("isn't how"), "{log}");
    server.stop();
    // Some of it may have been a write.
    let server = serve(&folder, &[]);
    assert_serves(&server);
    server.stop();
}
