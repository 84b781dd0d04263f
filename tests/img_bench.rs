//! The example program `img_bench` from outside: what it refuses, and that its runs are sound.

mod common;

use std::fs::{self, File};
use std::io::{Write, stderr};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

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

/// The fields of a run's one row, by column.
fn row(args: &[&str]) -> impl Fn(&str) -> String + use<> {
    let printed = succeed(&[args, &["--format", "tsv"]].concat());
    let lines: Vec<Vec<String>> =
        printed.lines().map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>()).collect();
    let [names, values] = &lines[..] else { panic!("{args:?}: not a header and a row: {printed}") };
    assert_eq!(names.len(), values.len(), "{args:?}: {printed}");
    let fields: Vec<_> = names.iter().cloned().zip(values.iter().cloned()).collect();
    move |name| {
        let field = fields.iter().find(|(column, _)| column == name);
        field.unwrap_or_else(|| panic!("no column {name}")).1.clone()
    }
}

/// Says aloud that a part of a test can't run here. The harness would hide what `eprintln` prints.
fn skip(reason: &str) {
    let _ = writeln!(stderr(), "SKIPPED: {reason}");
}

fn has_linux_aio() -> bool {
    let output = run(&["--engine", "linux-aio", "--size", "64k", "--count", "1"]);
    if !output.status.success() {
        skip(text(&output.stderr).trim());
    }
    output.status.success()
}

/// The engines that work here.
fn engines() -> Vec<&'static str> {
    if has_linux_aio() { vec!["linux-aio", "thread"] } else { vec!["thread"] }
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
    fail(&["--depth", "0"], &["--depth"]);
    fail(&["--block-size", "0"], &["--block-size"]);
    fail(&["--count", "0"], &["--count"]);
    fail(&["--seconds", "0"], &["--seconds"]);
    fail(&["--size", "0"], &["--size"]);
    fail(&["--direct", "--block-size", "1000"], &["--direct", "512", "1000"]);
    fail(&["--depth", "1000000000", "--block-size", "1G"], &["--depth", "buffers"]);
    refuse(&["--depth", "-1"], "-1");
    refuse(&["--depth", "many"], "many");
    refuse(&["--block-size", "4x"], "4x");
    refuse(&["--engine", "steam"], "steam");
    refuse(&["--count", "1", "--seconds", "1"], "--seconds");
    refuse(&["--direct", "--buffered"], "--buffered");
    refuse(&["--size", "1M", "disk.img"], "--size");
    refuse(&["--no-fill"], "--write");
}

#[test]
fn a_depth_over_the_limit_of_linux_aio() {
    if !has_linux_aio() {
        return;
    }
    let limit = fs::read_to_string("/proc/sys/fs/aio-max-nr").ok().and_then(|text| text.trim().parse::<u64>().ok());
    let Some(limit) = limit.filter(|&limit| limit < 1 << 18) else {
        return skip("fs.aio-max-nr is unknown, or too large to be exceeded");
    };
    let depth = (limit + 1).to_string();
    let args = ["--engine", "linux-aio", "--block-size", "512", "--size", "64k", "--depth", &depth];
    fail(&args, &[&depth, "fs.aio-max-nr"]);
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
fn both_engines_verify_their_own_image() {
    for engine in engines() {
        for order in ["--random", "--sequential"] {
            let field = row(&["--engine", engine, order, "--verify", "--size", "4M", "--count", "3000"]);
            assert_eq!(field("engine"), engine);
            assert_eq!(field("ios"), "3000");
            assert_eq!(field("verified"), "yes");
            assert!(field("syscalls_per_io").parse::<f64>().unwrap() > 0.0);
            assert!(field("p50_us").parse::<f64>().unwrap() <= field("max_us").parse::<f64>().unwrap());
        }
    }
}

#[test]
fn blocks_and_depths_of_all_kinds() {
    for engine in engines() {
        for (depth, block_size, count) in
            [("1", "512", "50"), ("7", "1000", "200"), ("64", "64k", "100"), ("300", "512", "5000"), ("8", "1", "99")]
        {
            let shape = ["--depth", depth, "--block-size", block_size, "--count", count];
            let field =
                row(&[&shape[..], &["--engine", engine, "--verify", "--buffered", "--size", "16000k"]].concat());
            assert_eq!((field("ios"), field("depth")), (count.to_owned(), depth.to_owned()));
            assert_eq!(field("cache"), "buffered");
        }
    }
}

#[test]
fn written_by_one_engine_and_verified_by_another() {
    let place = Place::new(1 << 20);
    for writer in engines() {
        for reader in engines() {
            let written =
                succeed(&["--engine", writer, "--write", "--verify", "--count", "500", "--seed", "5", &place.image]);
            assert!(written.contains("writes") && written.contains(writer), "{written}");
            let read = succeed(&["--engine", reader, "--verify", "--sequential", "--count", "256", &place.image]);
            assert!(read.contains("pattern seed 5") && read.contains(reader), "{read}");
        }
    }
    assert_eq!(fs::metadata(&place.image).unwrap().len(), 1 << 20);
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
    for engine in engines() {
        let args = ["--engine", engine, "--verify", "--sequential", &place.image];
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
    for engine in engines() {
        let place = Place::new(64 << 20);
        let args = ["--engine", engine, "--buffered", "--seconds", "60", &place.image];
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
    let field = row(&["--size", "64k", "--count", "1"]);
    for column in ["engine_reason", "iops", "mb_per_s", "cpu_ns_per_io", "p99_9_us", "pool_created", "pool_mappings"] {
        assert!(help.contains(column), "{column} is not in the help");
        assert!(!field(column).is_empty());
    }
}
