//! The program `nbd_server` as a process, and the tools that talk to it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write, stderr};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::common;

/// The program, which `cargo test` builds beside the tests.
pub(crate) fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile = test.ancestors().nth(2).expect("tests are in target/<profile>/deps");
    let program = profile.join("examples/nbd_server");
    assert!(program.exists(), "no {}: `cargo test` builds it, `cargo test --test` doesn't", program.display());
    program
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = common::command(&program());
    command.args(args).stdin(Stdio::null());
    command
}

/// Says aloud that a part of a test can't run here. The harness would hide what `eprintln` prints.
pub(crate) fn skip(reason: &str) {
    let _ = writeln!(stderr(), "SKIPPED: {reason}");
}

/// Whether a tool is there; says so if it isn't.
pub(crate) fn has(tool: &str) -> bool {
    let is_there = Command::new(tool).arg("--version").output().is_ok();
    if !is_there {
        skip(&format!("{tool} is missing"));
    }
    is_there
}

/// Runs a tool.
pub(crate) fn output(tool: &str, args: &[&str]) -> Output {
    Command::new(tool).args(args).stdin(Stdio::null()).output().expect("the tool starts")
}

/// Runs a tool, which must succeed; returns what it prints.
pub(crate) fn succeed(tool: &str, args: &[&str]) -> String {
    let output = output(tool, args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{tool} {args:?}: {}\n{out}\n{err}", output.status);
    format!("{out}{err}")
}

/// Bytes of which no two blocks are the same.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(len).collect()
}

/// A folder for one test.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a UTF-8 path").to_owned()
    }

    /// Makes an image of noise.
    pub(crate) fn image(&self, name: &str, len: usize) -> String {
        let path = self.path(name);
        fs::write(&path, noise(len)).expect("an image");
        path
    }

    /// Makes an image of zeroes.
    pub(crate) fn empty_image(&self, name: &str, len: u64) -> String {
        let path = self.path(name);
        File::create(&path).and_then(|file| file.set_len(len)).expect("an image");
        path
    }
}

/// A server that runs; killed when this is dropped.
pub(crate) struct Server {
    child: Child,
    /// Where it listens, in the order of its printing: TCP first.
    pub(crate) uris: Vec<String>,
    pub(crate) socket: String,
    log: String,
}

impl Server {
    /// Starts a server of these arguments at a socket in the folder, and `more` at other addresses, which they name.
    pub(crate) fn start(folder: &Folder, args: &[&str]) -> Self {
        let (socket, log) = (folder.path("socket"), folder.path("log"));
        let mut command = command(args);
        command.args(["--socket", &socket]).stdout(Stdio::piped());
        command.stderr(File::options().create(true).append(true).open(&log).expect("a log"));
        let mut child = command.spawn().expect("the program starts");
        let mut printed = BufReader::new(child.stdout.take().expect("it is piped"));
        let count = 1 + args.iter().filter(|&&arg| arg == "--tcp").count();
        let mut line = || {
            let mut line = String::new();
            printed.read_line(&mut line).expect("a line");
            assert!(line.starts_with("nbd"), "{line:?}\n{}", fs::read_to_string(&log).unwrap());
            line.trim_end().to_owned()
        };
        let uris = (0..count).map(|_| line()).collect();
        Self { child, uris, socket, log }
    }

    /// The URI of the Unix socket, of an export.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }

    /// Waits until the log says something.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, part: &str) {
        for _ in 0..common::LIMIT.as_millis() / 10 {
            if self.log().contains(part) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the log doesn't say {part:?}:\n{}", self.log());
    }

    /// Bytes of memory that it has.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    pub(crate) fn signal(&self, signal: &str) {
        succeed("kill", &["-s", signal, &self.child.id().to_string()]);
    }

    /// How it ends, of itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it is our child")
    }

    /// Ends it, which must be orderly.
    pub(crate) fn stop(mut self) {
        self.signal("TERM");
        let status = self.wait();
        let log = self.log();
        assert!(status.success(), "{status}\n{log}");
        assert!(!log.contains("panicked"), "{log}");
        assert!(!Path::new(&self.socket).exists(), "the socket is still there");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A part of a file.
pub(crate) fn bytes_of(path: &str, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(path).and_then(|file| file.read_exact_at(&mut bytes, offset)).expect("the file is that long");
    bytes
}
