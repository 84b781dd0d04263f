//! What a debugger shows inside of a coroutine.

use std::env;
use std::hint::black_box;
use std::process::{Command, Stdio};

use aioco::{Coroutine, yield_now};

/// Tells the child what to do.
const CHILD: &str = "AIOCO_TEST_GDB_CHILD";

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn aioco_test_gdb_stop_here() {
    black_box(());
}

#[inline(never)]
fn read_a_cluster(depth: u32) {
    if depth == 0 {
        yield_now();
        aioco_test_gdb_stop_here();
    } else {
        read_a_cluster(depth - 1);
    }
    black_box(());
}

#[test]
fn a_backtrace_shows_the_coroutines_frames_and_ends_there() {
    if env::var_os(CHILD).is_some() {
        let co = Coroutine::new(|| read_a_cluster(3)).unwrap();
        co.enter();
        co.enter();
        return;
    }
    if Command::new("gdb").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: gdb is not installed");
        return;
    }
    let output = Command::new("gdb")
        .args(["--batch", "--nx", "-ex", "set debuginfod enabled off", "-ex", "break aioco_test_gdb_stop_here"])
        .args(["-ex", "run", "-ex", "bt", "-ex", "kill", "--args"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "a_backtrace_shows_the_coroutines_frames_and_ends_there", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("ptrace: Operation not permitted") || text.contains("Could not trace the inferior process") {
        eprintln!("skipped: no permission to trace a process");
        return;
    }
    let frames: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    assert!(frames.len() > 5, "gdb's output was:\n{text}");
    assert!(frames[0].contains("aioco_test_gdb_stop_here"), "{text}");
    assert!(frames.iter().filter(|frame| frame.contains("read_a_cluster")).count() >= 4, "{text}");
    for trouble in ["Backtrace stopped", "corrupt stack", "previous frame identical", "Cannot access memory"] {
        assert!(!text.contains(trouble), "{text}");
    }
    let ends_at_bottom = frames.last().unwrap().contains("bottom");
    // corosensei's frames lead on into whoever entered the coroutine.
    let ends_at_enterer = text.contains("start_thread") || text.contains("clone");
    assert!(ends_at_bottom || ends_at_enterer, "{text}");
}
