//! The example program `img_bench` from outside: what it refuses, and that its runs are sound.

mod common;

use std::fs::{self, File};
use std::io::{Write, stderr};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

/// The program, which `cargo test` builds beside the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile = test.ancestors().nth(2).expect("tests are in target/<profile>/deps");
    let program = profile.join("examples/img_bench");
    assert!(program.exists(), "no {}: `cargo test` builds it, `cargo test --test` doesn't", program.display());
    program
}

fn command(args: &[&str]) -> Command {
    let mut command = common::command(&program());
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the program writes UTF-8")
}

/// Runs the program, which must succeed, and returns what it prints.
fn succeed(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs the program, which must fail with exit code 1 and one line that has all `parts` in it.
fn fail(args: &[&str], parts: &[&str]) {
    let output = run(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?}");
    let line = error.lines().find(|line| !line.starts_with("note: ")).unwrap_or_default();
    assert!(line.starts_with("img_bench: "), "{args:?}: {error}");
    assert_eq!(error.lines().last(), Some(line), "{args:?}: more than a sentence: {error}");
    for part in parts {
        assert!(line.contains(part), "{args:?}: no {part:?} in {error:?}");
    }
}

/// Runs the program, which must refuse its command line with exit code 2.
fn refuse(args: &[&str], part: &str) {
    let output = run(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(error.contains(part), "{args:?}: no {part:?} in {error:?}");
}

/// What a run says of itself as JSON.
fn report(args: &[&str]) -> Value {
    let printed = succeed(&[args, &["--format", "json"]].concat());
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{args:?}: {error}: {printed}"))
}

/// The only run of a report.
fn only_run(args: &[&str]) -> Value {
    let report = report(args);
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 1, "{args:?}: {report}");
    runs[0].clone()
}

/// Rows in tab-separated values.
fn rows(args: &[&str]) -> Vec<Vec<String>> {
    let printed = succeed(&[args, &["--format", "tsv"]].concat());
    printed.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Says aloud that a part of a test can't run here. The harness would hide what `eprintln` prints.
fn skip(reason: &str) {
    let _ = writeln!(stderr(), "SKIPPED: {reason}");
}

/// Whether a mode or an engine can be had; it is tried.
fn works(args: &[&str]) -> bool {
    let output = run(&[args, &["--size", "64k", "--count", "1"]].concat());
    if !output.status.success() {
        skip(text(&output.stderr).trim());
    }
    output.status.success()
}

/// The engines that work here.
fn engines() -> Vec<&'static str> {
    ["ring", "linux-aio", "workers", "inline"].into_iter().filter(|engine| works(&["--engine", engine])).collect()
}

/// Ways through all modes and engines that work here.
fn ways() -> Vec<Vec<&'static str>> {
    let mut ways = vec![vec!["--mode", "pread"], vec!["--mode", "coroutine"], vec!["--mode", "bypass"]];
    for mode in ["raw-ring", "raw-aio"] {
        if works(&["--mode", mode]) {
            ways.push(vec!["--mode", mode]);
        }
    }
    for engine in engines() {
        ways.push(vec!["--mode", "coroutine", "--engine", engine]);
        ways.push(vec!["--mode", "bypass", "--engine", engine]);
    }
    ways
}

fn is_pread(way: &[&str]) -> bool {
    way.contains(&"pread")
}

/// A folder for one test, with an image of zeros in it.
struct Place {
    folder: TempDir,
    image: String,
}

impl Place {
    fn new(image_size: u64) -> Place {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let image = folder.path().join("disk.img");
        File::create(&image).and_then(|file| file.set_len(image_size)).expect("an image");
        Place { image: image.to_str().expect("a UTF-8 path").to_owned(), folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("a UTF-8 path").to_owned()
    }
}

#[test]
fn files_that_are_no_images() {
    let place = Place::new(0);
    let missing = place.path("missing.img");
    fail(&[&missing], &[&missing, "No such file"]);
    fail(&[&place.image], &[&place.image, "is empty"]);
    fail(&["--write", &place.image], &["is empty"]);
    fail(&[&place.path("")], &["is a directory"]);
    fail(&["/dev/null"], &["/dev/null is a character device"]);

    let fifo = place.path("fifo");
    if Command::new("mkfifo").arg(&fifo).status().is_ok_and(|status| status.success()) {
        fail(&[&fifo], &["is a FIFO"]);
    } else {
        skip("no mkfifo");
    }
}

#[test]
fn sizes_that_are_no_multiple_of_the_block_size() {
    let place = Place::new(10_000);
    fail(&[&place.image], &["10000", "4096", "multiple"]);
    fail(&["--size", "10000", "--block-size", "4k"], &["10000", "4096", "multiple"]);
}

#[test]
fn values_that_make_no_sense() {
    for (option, value) in [
        ("--depth", "0"),
        ("--threads", "0"),
        ("--threads", "1000"),
        ("--block-size", "0"),
        ("--count", "0"),
        ("--rounds", "0"),
        ("--seconds", "0"),
        ("--seconds", "1e20"),
        ("--warm-up", "nan"),
        ("--rate", "0"),
        ("--rate", "nan"),
        ("--size", "0"),
    ] {
        fail(&[option, value], &[option]);
    }
    for (option, value) in [
        ("--depth", "many"),
        ("--depth", "1,x"),
        ("--threads", "two"),
        ("--block-size", "4x"),
        ("--step-size", "4x"),
        ("--offset", "x"),
        ("--engine", "steam"),
        ("--mode", "steam"),
        ("--target", "tape"),
        ("--cache", "l2"),
        ("--format", "xml"),
        ("--statistic", "worst"),
        ("--mixed", "101"),
        ("--mixed", "0"),
        ("--pattern", "256"),
        ("--polling", "long"),
        ("--rounds", "x"),
        ("--warm-up", "x"),
        ("--rate", "fast"),
        ("--seed", "x"),
        ("--flush-interval", "x"),
        ("-f", "qcow2"),
    ] {
        refuse(&[option, value], value.split(',').next_back().expect("a part"));
    }
    refuse(&["--depth", "-1"], "-1");
    fail(&["--direct", "--block-size", "1000"], &["--block-size", "512", "1000"]);
    fail(&["--direct", "--step-size", "1000"], &["--step-size", "512", "1000"]);
    fail(&["--direct", "--offset", "1000"], &["--offset", "512", "1000"]);
    fail(&["--depth", "1000000000", "--block-size", "1G"], &["--depth", "buffers"]);
    fail(&["--mode", "pread", "--depth", "8"], &["pread", "--depth"]);
    fail(&["--size", "1M", "--offset", "1M"], &["--offset", "1048576"]);
}

#[test]
fn options_that_do_not_go_together() {
    for (args, part) in [
        (&["--count", "1", "--seconds", "1"][..], "--seconds"),
        (&["--direct", "--buffered"], "--buffered"),
        (&["--direct", "--cache", "none"], "--cache"),
        (&["--random", "--sequential"], "--sequential"),
        (&["--random", "--step-size", "4k"], "--step-size"),
        (&["--size", "1M", "disk.img"], "--size"),
        (&["--target", "disk", "disk.img"], "--target"),
        (&["--target", "disk", "--direct"], "--direct"),
        (&["--compare", "--mode", "pread"], "--mode"),
        (&["--write", "--mixed", "50"], "--mixed"),
        (&["--write", "--no-fill", "--verify"], "--verify"),
        (&["--write", "--pattern", "0", "--verify"], "--verify"),
        (&["--no-drain"], "--flush-interval"),
        (&["--native", "--engine", "ring"], "--engine"),
    ] {
        refuse(args, part);
    }
    fail(&["--no-fill"], &["--no-fill", "--write"]);
    fail(&["--pattern", "1"], &["--pattern", "--write"]);
    fail(&["--flush-interval", "64"], &["--flush-interval", "--write"]);
    fail(&["--write", "--flush-interval", "63"], &["--flush-interval", "63", "64"]);
    fail(&["--mode", "raw-ring", "--engine", "ring"], &["--engine", "raw-ring"]);
    fail(&["--mode", "raw-aio", "--native"], &["--engine", "raw-aio"]);
    fail(&["--plot", "/nowhere/plot.svg"], &["/nowhere", "not a directory"]);
    fail(&["--plot", "/tmp"], &["/tmp", "is a directory"]);
}

#[test]
fn qemus_options_are_understood() {
    let place = Place::new(1 << 20);
    let run = report(&[
        "-c",
        "100",
        "-d",
        "4",
        "-s",
        "8k",
        "-S",
        "16k",
        "-o",
        "32k",
        "-t",
        "writeback",
        "-i",
        "threads",
        "-f",
        "raw",
        "-U",
        "-q",
        &place.image,
    ]);
    assert_eq!((&run["count"], &run["block_size"], &run["order"]), (&json!(100), &json!(8192), &json!("sequential")));
    assert_eq!((&run["step_size"], &run["offset"]), (&json!(16384), &json!(32768)));
    let run = &run["runs"][0];
    assert_eq!((&run["depth"], &run["ios"], &run["target"]), (&json!(4), &json!(100), &json!("page-cache")));
    assert!(run["engine"].as_str().is_some_and(|engine| engine.starts_with("workers")), "{run}");
    for cache in ["none", "off", "directsync", "writeback", "writethrough", "unsafe"] {
        let args = ["-w", "-t", cache, "-c", "8", "-d", "2", "--flush-interval=2", "--no-drain", "--pattern=0x7"];
        let output = run_on(&args, &place);
        // Direct I/O is the file system's to refuse.
        assert!(output.status.success() || text(&output.stderr).contains("directly"), "{}", text(&output.stderr));
    }
}

fn run_on(args: &[&str], place: &Place) -> Output {
    run(&[args, &[place.image.as_str()]].concat())
}

#[test]
fn a_file_that_may_not_be_written() {
    let place = Place::new(4096);
    let mut permissions = fs::metadata(&place.image).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&place.image, permissions).unwrap();
    // Permissions don't stop root, but what the kernel keeps read-only does.
    let root_proof = "/sys/kernel/uevent_seqnum";
    let file = [place.image.as_str(), root_proof]
        .into_iter()
        .find(|path| Path::new(path).exists() && File::options().write(true).open(path).is_err());
    match file {
        Some(file) => fail(&["--write", file], &["cannot open", file, "for writing"]),
        None => skip("nothing here is read-only to this user"),
    }
}

#[test]
fn every_way_verifies_its_own_image() {
    for way in ways() {
        for order in ["--random", "--sequential"] {
            let run = only_run(&[&way[..], &[order, "--verify", "--size", "4M", "--count", "3000"]].concat());
            assert_eq!(run["mode"], way[1]);
            assert_eq!(run["ios"], 3000);
            if let [.., "--engine", engine] = way[..] {
                assert_eq!(run["engine"], format!("{engine} (it was asked for)"));
            }
            assert!(run["syscalls"].as_f64().unwrap() > 0.0);
            let percentiles = ["p50_us", "p90_us", "p99_us", "p99_9_us"].map(|name| run[name].as_f64().unwrap());
            assert!(percentiles.is_sorted(), "{run}");
            let counted = run["histogram_ns"].as_array().unwrap().iter().map(|step| step[1].as_u64().unwrap());
            assert_eq!(counted.sum::<u64>(), 3000);
        }
    }
}

#[test]
fn blocks_and_depths_of_all_kinds() {
    for way in ways() {
        for (depth, block_size, count) in
            [("1", "512", "50"), ("7", "1000", "200"), ("64", "64k", "100"), ("300", "512", "5000"), ("8", "1", "99")]
        {
            let depth = if is_pread(&way) { "1" } else { depth };
            let shape = ["--depth", depth, "--block-size", block_size, "--count", count];
            let run = only_run(&[&way[..], &shape, &["--verify", "--buffered", "--size", "16000k"]].concat());
            assert_eq!((run["ios"].to_string(), run["depth"].to_string()), (count.to_owned(), depth.to_owned()));
            assert_ne!(run["target"], "disk");
        }
    }
}

#[test]
fn written_by_one_way_and_verified_by_another() {
    let place = Place::new(1 << 20);
    for writer in ways() {
        for op in [&["--write"][..], &["--mixed", "30"]] {
            let write = [&writer[..], op, &["--verify", "--count", "500", "--seed", "5", &place.image]].concat();
            let written = succeed(&write);
            assert!(written.contains("whole image") && written.contains(writer[1]), "{written}");
        }
        for reader in ways() {
            let read = [&reader[..], &["--verify", "--sequential", "--count", "256", &place.image]].concat();
            let read = succeed(&read);
            assert!(read.contains("pattern seed 5") && read.contains(reader[1]), "{read}");
        }
    }
    assert_eq!(fs::metadata(&place.image).unwrap().len(), 1 << 20);
}

#[test]
fn several_files_and_threads() {
    let (one, other) = (Place::new(1 << 20), Place::new(2 << 20));
    for way in ways() {
        for order in ["--random", "--sequential"] {
            let files = [order, "--threads", "3", "--count", "1000", &one.image, &other.image];
            succeed(&[&way[..], &["--write"], &files].concat());
            let run = only_run(&[&way[..], &["--verify"], &files].concat());
            assert_eq!(run["ios"], 1000, "{way:?}");
        }
    }
    // Both are read: what is wrong in the second one is found.
    File::options().write(true).open(&other.image).unwrap().write_all_at(&[0; 512], 0).unwrap();
    for way in ways() {
        let args = ["--threads", "2", "--sequential", "--verify", "--count", "2000", &one.image, &other.image];
        fail(&[&way[..], &args].concat(), &["offset 0"]);
    }
}

#[test]
fn steps_and_offsets() {
    for way in ways() {
        let place = Place::new(1 << 20);
        let depth = if is_pread(&way) { "1" } else { "4" };
        let args = ["-w", "-d", depth, "-c", "4", "-s", "4k", "-S", "64k", "-o", "16k", "--pattern", "0xee"];
        succeed(&[&way[..], &args, &[&place.image]].concat());
        let bytes = fs::read(&place.image).unwrap();
        let written: Vec<_> = (0..bytes.len()).step_by(4096).filter(|&at| bytes[at] == 0xee).collect();
        assert_eq!(written, [0, 1, 2, 3].map(|number| 16384 + number * 65536), "{way:?}");
        assert_eq!(bytes.iter().filter(|&&byte| byte == 0xee).count(), 4 * 4096, "{way:?}");
    }
}

#[test]
fn offsets_begin_anew_at_the_end() {
    let place = Place::new(64 << 10);
    // 16 blocks, the last of which is followed by the first.
    succeed(&["-w", "-c", "2", "-d", "1", "--sequential", "-o", "60k", "--pattern", "1", &place.image]);
    let bytes = fs::read(&place.image).unwrap();
    assert!(bytes[60 << 10..].iter().chain(&bytes[..4096]).all(|&byte| byte == 1));
    assert!(bytes[4096..60 << 10].iter().all(|&byte| byte == 0));
}

#[test]
fn flushes_happen_and_hold_nobody_up() {
    let place = Place::new(1 << 20);
    for way in ways() {
        let depth = if is_pread(&way) { "1" } else { "8" };
        for drain in [&[][..], &["--no-drain"]] {
            for limit in [["--count", "100"], ["--seconds", "0.1"]] {
                let args = ["-w", "-d", depth, "--flush-interval", "9", limit[0], limit[1], &place.image];
                let run = only_run(&[&way[..], drain, &args].concat());
                assert!(limit[0] == "--seconds" || run["ios"] == 100, "{way:?}: {run}");
            }
        }
    }
    let printed = succeed(&["-w", "-d", "8", "--flush-interval", "9", "--count", "100", &place.image]);
    assert!(printed.contains("after every 9 requests"), "{printed}");
}

#[test]
fn a_rate_is_kept() {
    for way in ways() {
        let depth = if is_pread(&way) { "1" } else { "4" };
        let args = ["--depth", depth, "--rate", "200", "--count", "41", "--size", "1M"];
        let run = only_run(&[&way[..], &args].concat());
        // 40 pauses of 5 ms, of which a backlog of 10 ms may be made up for.
        assert!(run["elapsed_s"].as_f64().unwrap() >= 0.18, "{way:?}: {run}");
        assert_eq!(run["ios"], 41, "{way:?}");
    }
    let slow = report(&["--rate", "0.01", "--seconds", "0.1", "--size", "1M"]);
    assert_eq!(slow["runs"][0]["ios"], 1, "what isn't due before the end isn't waited for");
}

#[test]
fn a_warm_up_and_polling_change_no_counts() {
    let run = only_run(&["--warm-up", "0.05", "--polling", "20", "--count", "100", "--size", "1M"]);
    assert_eq!(run["ios"], 100);
}

#[test]
fn a_comparison_has_a_row_for_each_combination() {
    let args = ["--compare", "--depth", "1,4", "--size", "1M", "--seconds", "0.01", "--rounds", "2", "--quiet"];
    let rows = rows(&args);
    let has =
        |mode: &str, target: &str, op: &str, depth: &str| rows.iter().any(|row| row[..4] == [mode, target, op, depth]);
    for target in ["disk", "page-cache", "tmpfs"] {
        if !rows.iter().any(|row| row[1] == target) {
            skip(target);
            continue;
        }
        for mode in ["coroutine", "bypass", "pread"] {
            for op in ["read", "write"] {
                assert!(has(mode, target, op, "1") && has(mode, target, op, "4"), "{mode} {target} {op}: {rows:?}");
            }
        }
    }
    for row in &rows {
        let figures: Vec<f64> = row[4..].iter().map(|figure| figure.parse().expect("a number")).collect();
        assert_eq!(figures.len(), 5, "{row:?}");
        assert!(figures.iter().all(|figure| *figure > 0.0), "{row:?}");
        assert!(figures[3] <= figures[4], "{row:?}");
    }
}

#[test]
fn a_comparison_prints_ratios() {
    if !works(&["--mode", "raw-ring"]) {
        return;
    }
    let args = ["--compare", "--target", "page-cache", "--depth", "2", "--size", "1M", "--seconds", "0.01", "--quiet"];
    for statistic in ["best", "median"] {
        let args = [&args[..], &["--statistic", statistic]].concat();
        let printed = succeed(&args);
        assert!(printed.contains("x raw-ring") && printed.contains(&format!("{statistic} of 7 rounds")), "{printed}");
        let report = report(&args);
        let runs = report["runs"].as_array().unwrap();
        for run in runs {
            let is_yardstick = |other: &&Value| other["mode"] == "raw-ring" && other["op"] == run["op"];
            let raw = runs.iter().find(is_yardstick).expect("a yardstick");
            let ratio = run["iops"].as_f64().unwrap() / raw["iops"].as_f64().unwrap();
            match run["iops_to_raw_ring"].as_f64() {
                Some(said) => assert!((said - ratio).abs() < 1e-9, "{run}"),
                None => assert_eq!(run["mode"], "raw-ring"),
            }
        }
    }
}

#[test]
fn a_plot_shows_each_mode_and_depth() {
    let place = Place::new(4096);
    let plot = place.path("plot.svg");
    let args = ["--mode", "coroutine,pread", "--depth", "1,2,4", "--rounds", "1", "--seconds", "0.01", "--size", "1M"];
    succeed(&[&args[..], &["--plot", &plot]].concat());
    let image = fs::read_to_string(&plot).unwrap();
    assert!(image.starts_with("<svg") && image.ends_with("</svg>\n"), "{image}");
    // A line in each of two panels, and in the legend.
    assert_eq!(image.matches("<polyline class=\"coroutine\"").count(), 3, "{image}");
    assert_eq!(image.matches("<polyline class=\"pread\"").count(), 3, "{image}");
    assert_eq!(image.matches("<circle class=\"pread\"").count(), 2 * 3 + 2, "{image}");
}

#[test]
fn an_engine_that_is_not_there_is_an_error() {
    // Where there is no ring, workers would take its place.
    let engines = engines();
    for engine in ["ring", "linux-aio", "workers", "inline"].into_iter().filter(|engine| !engines.contains(engine)) {
        fail(&["--engine", engine, "--size", "64k", "--count", "1"], &[engine]);
    }
}

#[test]
fn reading_leaves_a_file_as_it_is() {
    let place = Place::new(1 << 20);
    succeed(&["--count", "100", &place.image]);
    assert!(fs::read(&place.image).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn the_first_mismatch_is_named() {
    let place = Place::new(1 << 20);
    fail(&["--verify", &place.image], &["offset 0", "--write"]);
    succeed(&["--write", "--count", "1", &place.image]);
    succeed(&["--verify", "--count", "1000", &place.image]);

    let image = File::options().write(true).open(&place.image).unwrap();
    image.write_all_at(&[0; 512], 8192).unwrap();
    for way in ways() {
        let args = [&way[..], &["--verify", "--sequential", &place.image]].concat();
        fail(&args, &["mismatch", "offset 8192"]);
    }
    // A writing run puts it right.
    succeed(&["--write", "--count", "1", &place.image]);
    succeed(&["--verify", "--sequential", "--count", "256", &place.image]);
}

#[test]
fn without_a_fill_only_the_blocks_of_the_run_are_written() {
    let place = Place::new(1 << 20);
    succeed(&["--write", "--no-fill", "--sequential", "--count", "4", &place.image]);
    let bytes = fs::read(&place.image).unwrap();
    let (written, rest) = bytes.split_at(4 * 4096);
    assert!(written.chunks(512).all(|sector| sector.starts_with(b"aioco1\r\n")));
    assert!(rest.iter().all(|byte| *byte == 0));
}

#[test]
fn an_image_that_shrinks_ends_the_run() {
    for way in ways() {
        let place = Place::new(64 << 20);
        let args = [&way[..], &["--buffered", "--seconds", "60", &place.image]].concat();
        let child = command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // Whether the run has begun doesn't matter: the smaller file is empty to an early program.
        std::thread::sleep(Duration::from_millis(300));
        File::create(&place.image).unwrap();
        let output = child.wait_with_output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("short read at offset") || error.contains("is empty"), "{error}");
    }
}

#[test]
fn nothing_is_left_of_the_temporary_image() {
    let place = Place::new(4096);
    let mut command = command(&["--size", "1M", "--seconds", "60"]);
    let mut child = command.env("TMPDIR", place.folder.path()).stdout(Stdio::null()).spawn().unwrap();
    let files = PathBuf::from(format!("/proc/{}/fd", child.id()));
    let is_image = |file: PathBuf| file.to_string_lossy().contains("/img_bench-");
    let has_image = || {
        let links = fs::read_dir(&files).into_iter().flatten().flatten();
        links.filter_map(|link| fs::read_link(link.path()).ok()).any(is_image)
    };
    while !has_image() {
        assert!(child.try_wait().unwrap().is_none(), "ended early");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The name is there for a moment, until the file is open in both ways.
    std::thread::sleep(Duration::from_millis(200));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_dir(place.folder.path()).unwrap().count(), 1);
}

#[test]
fn a_full_standard_output_is_an_error() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["--size", "64k", "--count", "1"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("No space left"), "{}", text(&output.stderr));
}

#[test]
fn the_help_warns_of_writing() {
    let help = succeed(&["--help"]);
    assert!(help.contains("OVERWRITES ALL DATA IN FILE"), "{help}");
    for field in ["mode", "target", "op", "depth", "iops", "cpu_ns", "syscalls", "p50_us", "p99_us"] {
        assert!(help.contains(field), "{field} is not in the help");
    }
    let report = report(&["--size", "64k", "--count", "1"]);
    for field in ["engine", "iops", "mb_per_s", "cpu_ns", "syscalls", "p99_9_us", "max_us"] {
        assert!(!report["runs"][0][field].is_null(), "{report}");
    }
}
