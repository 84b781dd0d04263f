//! The floors of the house: a room of `src/` uses only rooms on lower floors, and `unsafe` lives where it is allowed.
//!
//! A room is a folder of `src/` (or a file there that isn't `lib.rs`, the roof). What it uses is read from its source
//! text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// From the ground up. Rooms on one floor don't know each other, but for those in [`NEIGHBOURS`].
const FLOORS: [&[&str]; 8] = [
    &["primitive"],
    &["lockfree", "sys"],
    &["arena", "pool"],
    &["coroutine"],
    &["park", "task"],
    &["aio", "sync"],
    &["block", "fd"],
    &["diag"],
];

/// The first may use the second, on the same floor.
const NEIGHBOURS: [(&str, &str); 1] = [("task", "park")];

/// The files that may contain `unsafe`. Whoever makes this list longer says in the file's head, under `# Safety`, what
/// the file may assume and what it promises.
const UNSAFE: &[&str] = &[
    "aio/bh.rs",
    "aio/fdmon/io_uring.rs",
    "aio/fdmon/mod.rs",
    "aio/linux_aio.rs",
    "aio/local.rs",
    "aio/registry.rs",
    "aio/request.rs",
    "aio/request_state.rs",
    "aio/sleep.rs",
    "arena.rs",
    "block/aligned.rs",
    "block/bypass.rs",
    "block/group.rs",
    "block/perform.rs",
    "block/place.rs",
    "block/transfer.rs",
    "block/workers.rs",
    "coroutine/block.rs",
    "coroutine/enter.rs",
    "coroutine/handle.rs",
    "coroutine/home.rs",
    "coroutine/home_cell.rs",
    "coroutine/label.rs",
    "coroutine/newborn.rs",
    "coroutine/root.rs",
    "coroutine/runner.rs",
    "coroutine/stack.rs",
    "coroutine/supply.rs",
    "coroutine/suspend.rs",
    "coroutine/switch/aarch64.rs",
    "coroutine/switch/jump.rs",
    "coroutine/switch/portable.rs",
    "coroutine/switch/x86_64.rs",
    "coroutine/table.rs",
    "coroutine/thread.rs",
    "coroutine/unwind.rs",
    "coroutine/wake.rs",
    "lockfree/fifo.rs",
    "lockfree/link.rs",
    "lockfree/push_stack.rs",
    "pool/local.rs",
    "pool/mod.rs",
    "pool/release.rs",
    "primitive/short_lock.rs",
    "primitive/tls.rs",
    "sync/messages.rs",
    "sync/mutex.rs",
    "sync/raw/channel.rs",
    "sync/raw/gate.rs",
    "sync/raw/holder.rs",
    "sync/raw/pending.rs",
    "sync/raw/threshold.rs",
    "sync/raw/wait_list.rs",
    "sync/raw/wait_queue.rs",
    "sync/rwlock.rs",
    "sync/task_group.rs",
    "sys/entrance.rs",
    "sys/epoll.rs",
    "sys/eventfd.rs",
    "sys/fault.rs",
    "sys/file.rs",
    "sys/futex.rs",
    "sys/linux_aio.rs",
    "sys/mmap.rs",
    "sys/poll.rs",
    "sys/ring.rs",
    "sys/thread_exit.rs",
    "sys/transfer.rs",
    "task/completion.rs",
    "task/mod.rs",
    "task/oneshot.rs",
    "task/scoped.rs",
];

#[test]
fn rooms_use_lower_floors_only() {
    let files = source();
    let mut wrong = Vec::new();
    for (file, text) in &files {
        let room = room_of(file);
        let modules: BTreeSet<_> =
            files.keys().filter(|other| room_of(other) == room).flat_map(|file| module_names(file)).collect();
        let used = rooms_used(text, &modules);
        wrong.extend(used.iter().filter(|used| !may_use(room, used)).map(|used| format!("{file}: {used}")));
    }
    assert!(wrong.is_empty(), "used from where it may not be:\n{}", wrong.join("\n"));
}

#[test]
fn each_room_has_a_floor() {
    let files = source();
    let rooms: BTreeSet<_> = files.keys().map(|file| room_of(file)).collect();
    let homeless: Vec<_> = rooms.into_iter().filter(|room| floor(room).is_none()).collect();
    assert!(homeless.is_empty(), "rooms without a floor in this test's table: {homeless:?}");
}

#[test]
fn unsafe_code_is_where_it_is_listed() {
    let files = source();
    let allowed: Vec<_> = files.iter().filter(|(_, text)| allows_unsafe(text)).map(|(file, _)| file.as_str()).collect();
    assert_eq!(allowed, UNSAFE, "files that allow unsafe code (left), and those that may (right)");
}

#[test]
fn unsafe_files_say_what_they_rely_on() {
    let files = source();
    let unsafe_files = files.iter().filter(|(_, text)| allows_unsafe(text));
    let silent: Vec<_> =
        unsafe_files.filter(|(_, text)| !head(text).contains("# Safety")).map(|(file, _)| file).collect();
    assert!(silent.is_empty(), "no `# Safety` in the heads of {silent:?}");
}

/// The checks above would also pass if they found nothing.
#[test]
fn the_checks_can_fail() {
    assert!(may_use("coroutine", "pool"));
    assert!(may_use("task", "park") && !may_use("park", "task"));
    assert!(!may_use("pool", "coroutine"));
    assert!(!may_use("aio", "sync") && !may_use("sync", "aio"));
    assert!(!may_use("aio", "nowhere"));

    let used = |text| rooms_used(text, &BTreeSet::from(["block"])).into_iter().collect::<Vec<_>>();
    assert_eq!(used("use crate::aio::AioContext;"), ["aio"]);
    assert_eq!(used("let home: crate::coroutine::Home; // crate::fd"), ["coroutine"]);
    assert_eq!(used("use crate::{park, sys::{self, mmap}, task::JoinHandle};"), ["park", "sys", "task"]);
    assert_eq!(used("use crate::{\n    pool,\n    sync as s,\n};"), ["pool", "sync"]);
    assert_eq!(used("use super::super::sys;"), ["sys"]);
    assert_eq!(used("use super::super::block::Block;"), [""; 0]);
    assert_eq!(used("//! See [`crate::diag`].\n/// And `crate::fd`.\n"), [""; 0]);
    assert_eq!(used("use crate::AioContext;"), ["(the roof)"]);

    assert!(allows_unsafe("//! Head.\n#![allow(unsafe_code)] // # Safety: none.\nuse std::io;"));
    assert!(!allows_unsafe("//! `#![allow(unsafe_code)]`\nuse std::io;"));
    assert!(!head("#![allow(unsafe_code)]\nuse std::io;\n/// # Safety\nunsafe fn f() {}").contains("# Safety"));
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

fn may_use(user: &str, used: &str) -> bool {
    let lower = floor(used).is_some() && floor(used) < floor(user);
    lower || user == used || NEIGHBOURS.contains(&(user, used))
}

/// `aio/context.rs` is in `aio`.
fn room_of(file: &str) -> &str {
    file.split(['/', '.']).next().expect("a path isn't empty")
}

/// `coroutine/switch/jump.rs` is in the modules `coroutine`, `switch` and `jump`.
fn module_names(file: &str) -> impl Iterator<Item = &str> {
    file.split(['/', '.'])
}

/// The rooms that a file names by paths that begin with `crate::`, or with `super::` when that leads out of the room,
/// whose own modules are `modules`.
fn rooms_used(text: &str, modules: &BTreeSet<&str>) -> BTreeSet<String> {
    let code: String = text.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    let from_root = code.split("crate::").skip(1).flat_map(first_names).map(room_or_roof);
    let from_here = code.split("super::").skip(1).flat_map(first_names);
    let leads_out = |name: &&str| floor(name).is_some() && !modules.contains(name);
    from_root.chain(from_here.filter(leads_out).map(str::to_owned)).collect()
}

/// The first name of a path, or of each path in a group.
fn first_names(path: &str) -> Vec<&str> {
    let Some(group) = path.strip_prefix('{') else { return vec![first_name(path)] };
    let mut names = Vec::new();
    let mut depth = 0;
    let mut start = 0;
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(first_name(group[start..at].trim()));
                start = at + 1;
            }
            _ => {}
        }
        if character == '}' && start == at + 1 {
            break;
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn first_name(path: &str) -> &str {
    path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// What the roof re-exports is for users: a room that uses it hides which room it means.
fn room_or_roof(name: &str) -> String {
    let is_module = name.starts_with(|c: char| c.is_lowercase());
    if is_module { name.to_owned() } else { "(the roof)".to_owned() }
}

fn allows_unsafe(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("#![allow(unsafe_code)]"))
}

/// What comes before the first item.
fn head(text: &str) -> String {
    let is_head = |line: &&str| line.is_empty() || line.starts_with("//!") || line.starts_with("#!");
    text.lines().take_while(is_head).map(|line| line.to_owned() + "\n").collect()
}

/// The files of `src/` but for the roof, by their paths in it.
fn source() -> BTreeMap<String, String> {
    fn visit(folder: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let place = format!("{prefix}{name}");
            if path.is_dir() {
                visit(&path, &format!("{place}/"), files);
            } else if name.ends_with(".rs") {
                files.insert(place, fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut files = BTreeMap::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut files);
    files.remove("lib.rs").expect("there is a roof");
    files
}
