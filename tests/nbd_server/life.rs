//! How it starts, and how it ends.

use std::fs;
use std::os::unix::net::UnixStream;

use super::client::*;
use super::server::{Folder, Server, bytes_of, command, noise};

const MIB: usize = 1 << 20;

/// Runs the program, which must fail with one sentence that has the parts in it.
#[track_caller]
fn fail(args: &[&str], parts: &[&str]) {
    let output = command(args).output().expect("the program starts");
    let error = String::from_utf8(output.stderr).expect("the program writes UTF-8");
    assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
    assert!(error.starts_with("nbd_server: ") && error.lines().count() == 1, "{args:?}: {error}");
    for part in parts {
        assert!(error.contains(part), "{args:?}: no {part:?} in {error:?}");
    }
}

#[test]
fn what_can_not_be_served() {
    let folder = Folder::new();
    let (disk, missing, socket) = (folder.image("disk", 512), folder.path("missing"), folder.path("socket"));
    fail(&[], &["FILE"]);
    fail(&[&missing, "--socket", &socket], &[&missing, "No such file"]);
    fail(&[&folder.path(""), "--socket", &socket, "--export", "x=y"], &["neither a file nor a block device"]);
    fail(&["/dev/null", "--socket", &socket], &["/dev/null", "neither"]);
    fail(&[&disk, "--socket", &folder.path("no/socket")], &["cannot listen", "No such file"]);
    fail(&[&disk, "--socket", &disk], &["cannot listen", &disk]);
    fail(&[&disk, "--tcp", "192.0.2.1:0"], &["cannot listen at 192.0.2.1:0"]);
    fail(&[&disk, "--threads", "0"], &["--threads"]);
    assert_eq!(fs::read(&disk).unwrap(), noise(512));
    let refused = command(&["--tcp", "nowhere", &disk]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let help = command(&["--help"]).output().unwrap();
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--socket"));
}

#[test]
fn a_signal_ends_it_after_what_is_in_flight() {
    for signal in ["INT", "TERM"] {
        let folder = Folder::new();
        let disk = folder.image("disk", MIB);
        let mut server = Server::start(&folder, &["--threads", "2", "--verbose", &disk]);
        let mut busy = Client::go(&server, "");
        let idle = Client::go(&server, "");
        let haggling = Client::haggle(&server);
        // More than fits into the socket, so there is something in flight until it is read.
        (0..8).for_each(|cookie| busy.request(READ, 0, cookie, 0, MIB as u32));
        server.wait_for_log("uses");
        assert_eq!(busy.error(0), 0);
        server.signal(signal);
        server.wait_for_log("stops");
        [idle, haggling].into_iter().for_each(Client::assert_hung_up);
        assert!(UnixStream::connect(&server.socket).is_err());
        let mut bytes = busy.take_vec(MIB);
        let mut answered = 1;
        // Each is answered: with data, or with word that it came too late.
        for cookie in 1..8 {
            match busy.error(cookie) {
                0 => bytes = busy.take_vec(MIB),
                error => assert_eq!(error, 108),
            }
            answered += 1;
        }
        assert!(answered == 8 && bytes == noise(MIB));
        busy.assert_hung_up();
        assert!(server.wait().success(), "{}", server.log());
    }
}

#[test]
fn a_throttle_holds_requests_up_but_not_the_end() {
    let folder = Folder::new();
    let (disk, other) = (folder.empty_image("disk", 100), folder.image("other", 512));
    let mut server = Server::start(&folder, &["--throttle", "1", "--threads", "2", "--verbose", &disk, &other]);
    let mut client = Client::go(&server, "disk");
    let writes = (0..100).flat_map(|cookie| [request(WRITE, 0, cookie, cookie, 1), vec![b'x']].concat());
    client.send(&writes.collect::<Vec<u8>>());
    for cookie in 0..8 {
        assert_eq!(client.error(cookie), 0, "a few may go at once");
    }
    assert_eq!(bytes_of(&disk, 99, 1), [0], "this one's turn is minutes away");
    let mut neighbour = Client::go(&server, "other");
    neighbour.request(READ, 0, 1, 0, 1);
    assert_eq!(neighbour.error(1), 0, "each image has its own");
    server.signal("TERM");
    // In any order.
    let mut cookies: Vec<u8> = (8..100).map(|_| client.take::<16>()[15]).collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(8..100));
    client.assert_hung_up();
    assert_eq!(bytes_of(&disk, 0, 100), [b'x'; 100]);
    assert!(server.wait().success(), "{}", server.log());
}

#[test]
fn who_does_not_take_replies_is_left_behind() {
    let folder = Folder::new();
    let disk = folder.image("disk", MIB);
    let server = Server::start(&folder, &[&disk]);
    let mut client = Client::go(&server, "");
    (0..8).for_each(|cookie| client.request(READ, 0, cookie, 0, MIB as u32));
    assert_eq!(client.error(0), 0);
    server.stop();
}

#[test]
fn a_second_signal_does_not_wait() {
    let folder = Folder::new();
    let disk = folder.image("disk", MIB);
    let mut server = Server::start(&folder, &["--verbose", &disk]);
    let mut client = Client::go(&server, "");
    (0..8).for_each(|cookie| client.request(READ, 0, cookie, 0, MIB as u32));
    assert_eq!(client.error(0), 0);
    server.signal("TERM");
    server.wait_for_log("stops");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(1));
}

#[test]
fn an_abandoned_socket_is_replaced() {
    let folder = Folder::new();
    let disk = folder.image("disk", MIB);
    let mut killed = Server::start(&folder, &[&disk]);
    fail(&[&disk, "--socket", &killed.socket], &["in use"]);
    killed.signal("KILL");
    killed.wait();
    let server = Server::start(&folder, &[&disk]);
    drop(Client::go(&server, ""));
    server.stop();
}

#[test]
fn there_is_an_end_to_hospitality() {
    let folder = Folder::new();
    let disk = folder.image("disk", MIB);
    let server = Server::start(&folder, &["--connections", "2", &disk]);
    let guests = [Client::go(&server, ""), Client::go(&server, "")];
    let turned_away = UnixStream::connect(&server.socket).unwrap();
    Client(turned_away).assert_hung_up();
    server.wait_for_log("turned away");
    for mut guest in guests {
        guest.request(DISCONNECT, 0, 0, 0, 0);
        guest.assert_hung_up();
    }
    drop(Client::go(&server, ""));
    server.stop();
}
