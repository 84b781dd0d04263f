//! Clients that others wrote.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::server::{Folder, Server, bytes_of, has, noise, output, skip, succeed};

const MIB: usize = 1 << 20;

#[test]
fn nbdinfo_sees_what_there_is() {
    if !has("nbdinfo") {
        return;
    }
    let folder = Folder::new();
    let (disk, other) = (folder.image("disk.img", 3 * MIB), folder.image("other", 512));
    let server = Server::start(&folder, &["--tcp", "127.0.0.1:0", &disk, "--export", &format!("b={other}")]);
    for uri in [&server.uris[0], &server.uri(""), &server.uri("disk.img")] {
        assert_eq!(succeed("nbdinfo", &["--size", uri]).trim(), (3 * MIB).to_string());
    }
    assert_eq!(succeed("nbdinfo", &["--size", &server.uri("b")]).trim(), "512");
    assert!(!output("nbdinfo", &[&server.uri("c")]).status.success());
    let list = succeed("nbdinfo", &["--list", &server.uri("")]);
    assert!(list.contains("disk.img") && list.contains("export=\"b\""), "{list}");
    let about = succeed("nbdinfo", &[&server.uri("")]);
    for part in [
        "structured",
        "is_read_only: false",
        "can_flush: true",
        "can_fua: true",
        "can_trim: true",
        "can_zero: true",
        "can_multi_conn: true",
        "block_size_minimum: 1\n",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(about.contains(part), "no {part:?} in {about}");
    }
    server.stop();
}

#[test]
fn nbdcopy_copies_both_ways() {
    if !has("nbdcopy") {
        return;
    }
    let folder = Folder::new();
    // Not a whole number of anything.
    let (from, to) = (folder.image("from", 9 * MIB + 777), folder.empty_image("to", (9 * MIB + 777) as u64));
    let server = Server::start(&folder, &["--threads", "2", &from, &to]);
    let copy = folder.path("copy");
    succeed("nbdcopy", &[&server.uri("from"), &copy]);
    assert!(fs::read(&copy).unwrap() == fs::read(&from).unwrap());
    succeed("nbdcopy", &["--flush", &copy, &server.uri("to")]);
    assert!(fs::read(&to).unwrap() == fs::read(&from).unwrap());
    server.stop();
}

#[test]
fn qemu_img_finds_an_image() {
    if !has("qemu-img") {
        return;
    }
    let folder = Folder::new();
    let (disk, copy) = (folder.image("disk", 4 * MIB), folder.empty_image("copy", 4 * MIB as u64));
    let server = Server::start(&folder, &[&disk, &copy]);
    let (disk_uri, copy_uri) = (server.uri("disk"), server.uri("copy"));
    assert!(succeed("qemu-img", &["info", &disk_uri]).contains("4 MiB (4194304 bytes)"));
    let raw = ["-f", "raw"];
    succeed("qemu-img", &[&["convert", "-n", "-O", "raw"], &raw[..], &[&disk_uri, &copy_uri]].concat());
    succeed("qemu-img", &[&["compare", "-F", "raw"], &raw[..], &[&disk_uri, &copy_uri]].concat());
    assert!(fs::read(&disk).unwrap() == fs::read(&copy).unwrap());
    let qcow2 = folder.path("disk.qcow2");
    succeed("qemu-img", &[&["convert", "-O", "qcow2"], &raw[..], &[&disk_uri, &qcow2]].concat());
    succeed("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &qcow2, &disk_uri]);
    for direction in [&[][..], &["-w", "--pattern=7", "--flush-interval=100"]] {
        let bench = ["bench", "-c", "1000", "-d", "32", "-t", "none"];
        succeed("qemu-img", &[&bench, &raw[..], direction, &[&copy_uri]].concat());
    }
    assert_eq!(bytes_of(&copy, 4096 * 999, 4096), [7; 4096]);
    server.stop();
}

/// An image of 3 MiB with data in its second MiB. (The file system of temporary files knows holes.)
fn image_with_holes(folder: &Folder) -> String {
    let disk = folder.empty_image("disk", 3 * MIB as u64);
    fs::File::options().write(true).open(&disk).unwrap().write_all_at(&noise(MIB), MIB as u64).unwrap();
    disk
}

#[test]
fn nbdinfo_finds_the_holes() {
    if !has("nbdinfo") {
        return;
    }
    let folder = Folder::new();
    let server = Server::start(&folder, &[&image_with_holes(&folder)]);
    assert!(succeed("nbdinfo", &[&server.uri("")]).contains("base:allocation"));
    let map = succeed("nbdinfo", &["--map", &server.uri("")]);
    let rows: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    assert_eq!(rows, [["0", "1048576", "3"], ["1048576", "1048576", "0"], ["2097152", "1048576", "3"]], "{map}");
    server.stop();
}

#[test]
fn qemu_img_and_nbdcopy_leave_holes_out() {
    if !has("qemu-img") || !has("nbdcopy") {
        return;
    }
    let folder = Folder::new();
    let disk = image_with_holes(&folder);
    let server = Server::start(&folder, &["--read-only", &disk]);
    let uri = server.uri("");
    let map = succeed("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let rows =
        map.as_array().unwrap().iter().map(|row| (row["start"].as_u64().unwrap(), row["data"].as_bool().unwrap()));
    assert_eq!(rows.collect::<Vec<_>>(), [(0, false), (MIB as u64, true), (2 * MIB as u64, false)]);
    for (tool, args) in [("qemu-img", &["convert", "-O", "raw", "-f", "raw"][..]), ("nbdcopy", &[])] {
        let copy = folder.path(tool);
        succeed(tool, &[args, &[&uri, &copy]].concat());
        assert!(fs::read(&copy).unwrap() == fs::read(&disk).unwrap(), "{tool}");
        assert!(fs::metadata(&copy).unwrap().blocks() * 512 < 2 * MIB as u64, "{tool} has filled the holes");
    }
    server.stop();
}

#[test]
fn qemu_io_does_whatever_there_is_to_do() {
    if !has("qemu-io") {
        return;
    }
    let folder = Folder::new();
    let disk = folder.image("disk", 4 * MIB);
    let server = Server::start(&folder, &[&disk]);
    let commands = [
        "write -P 5 1000k 64k",
        "read -P 5 1000k 64k",
        "write -f -P 6 4k 4k",
        "read -P 6 4k 4k",
        "write -P 8 513 1000",
        "read -P 8 513 1000",
        "discard 64k 64k",
        "write -z 200k 50k",
        "read -P 0 200k 50k",
        "write -z -u 300k 50k",
        "read -P 0 300k 50k",
        "write -z -f 400k 1k",
        "aio_write -P 9 2M 1M",
        "aio_flush",
        "aio_read -P 9 2M 4k",
        "aio_flush",
        "flush",
    ];
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    let printed = succeed("qemu-io", &[&["-f", "raw", &server.uri("")], &commands[..]].concat());
    assert!(!printed.contains("failed"), "{printed}");
    assert_eq!(bytes_of(&disk, 1000 << 10, 65536), [5; 65536]);
    assert_eq!(bytes_of(&disk, 200 << 10, 50 << 10), [0; 50 << 10]);
    assert_eq!(bytes_of(&disk, 2 * MIB as u64, MIB), [9; MIB]);
    // Nobody wrote there.
    assert_eq!(bytes_of(&disk, 3 * MIB as u64, MIB), noise(4 * MIB)[3 * MIB..]);
    server.stop();
}

#[test]
fn who_may_only_read_changes_nothing() {
    if !has("qemu-io") || !has("nbdinfo") {
        return;
    }
    let folder = Folder::new();
    let disk = folder.image("disk", MIB);
    let server = Server::start(&folder, &["--read-only", &disk]);
    assert!(succeed("nbdinfo", &[&server.uri("")]).contains("is_read_only: true"));
    let uri = server.uri("");
    succeed("qemu-io", &["-r", "-f", "raw", &uri, "-c", "read 0 1M"]);
    assert!(!output("qemu-io", &["-f", "raw", &uri, "-c", "write 0 4k"]).status.success());
    assert!(fs::read(&disk).unwrap() == noise(MIB));
    server.stop();
}

/// Writes at random from four connections at depth, and verifies what it reads back.
#[test]
fn fio_verifies_what_it_wrote() {
    if !has("fio") {
        return;
    }
    if !succeed("fio", &["--enghelp"]).contains("nbd") {
        return skip("fio has no engine nbd");
    }
    let folder = Folder::new();
    let disk = folder.empty_image("disk", 16 << 20);
    let server = Server::start(&folder, &["--threads", "2", "--tcp", "127.0.0.1:0", &disk]);
    for uri in [&server.uris[0], &server.uri("")] {
        let uri = format!("--uri={uri}");
        let job = ["--name=verify", "--ioengine=nbd", &uri, "--rw=randwrite", "--bsrange=512-64k", "--iodepth=32"];
        let jobs = ["--numjobs=4", "--size=4M", "--offset_increment=4M", "--verify=crc32c", "--verify_fatal=1"];
        // It would leave a file about each job in the current folder.
        let jobs = [&jobs[..], &["--verify_state_save=0"]].concat();
        succeed("fio", &[&job[..], &jobs].concat());
    }
    server.stop();
}

#[test]
fn past_the_page_cache_blocks_are_whole() {
    if !has("nbdinfo") || !has("nbdcopy") {
        return;
    }
    let folder = Folder::new();
    let disk = folder.image("disk", 2 * MIB + 100);
    let args = ["--direct", &disk];
    let attempt = super::server::command(&[&args[..], &["--socket", "/nowhere/socket"]].concat()).output().unwrap();
    if String::from_utf8_lossy(&attempt.stderr).contains("O_DIRECT") {
        return skip("this file system doesn't know O_DIRECT");
    }
    let server = Server::start(&folder, &args);
    let about = succeed("nbdinfo", &[&server.uri("")]);
    assert!(!about.contains("block_size_minimum: 1\n"), "{about}");
    let copy = folder.path("copy");
    succeed("nbdcopy", &[&server.uri(""), &copy]);
    let copied = fs::read(&copy).unwrap();
    assert!(copied.len() > 2 * MIB - 4096 && copied.len().is_multiple_of(512));
    assert!(copied == noise(2 * MIB + 100)[..copied.len()]);
    server.stop();
}
