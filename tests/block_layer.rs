//! The example program `block_layer` from outside: that no request is lost, which way requests go, and what it refuses.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use tempfile::TempDir;

const BLOCK: u64 = 4096;

/// The program, which `cargo test` builds beside the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile = test.ancestors().nth(2).expect("tests are in target/<profile>/deps");
    let program = profile.join("examples/block_layer");
    assert!(program.exists(), "no {}: `cargo test` builds it, `cargo test --test` doesn't", program.display());
    program
}

fn run(args: &[&str]) -> Output {
    let mut command = common::command(&program());
    command.args(args).stdin(Stdio::null());
    // A request that is lost would be waited for without end.
    common::within(common::LIMIT, move || command.output()).expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the program writes UTF-8")
}

/// What a run has printed.
struct Report(String);

impl Report {
    /// Of a short run, which must succeed.
    fn of(args: &[&str]) -> Self {
        let output = run(&[&["--requests", "1000", "--rounds", "1"], args].concat());
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        Self(text(&output.stdout))
    }

    /// The numbers of the line that begins with `name`.
    fn numbers(&self, name: &str) -> Vec<u64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name));
        let words = line.unwrap_or_else(|| panic!("no line {name:?} in {}", self.0)).split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    }

    /// How many requests went around the chain, and by coroutine, where both were allowed.
    fn ways(&self) -> (u64, u64) {
        let numbers = self.numbers("bypass if possible");
        (numbers[0], numbers[1])
    }

    /// That both runs came to their end with requests in flight, of which none was lost.
    fn assert_sound(&self, depth: u64) {
        let [in_flight, refused, lost] = self.numbers("shutdowns")[..] else { panic!("{}", self.0) };
        assert_eq!(lost, 0, "{}", self.0);
        assert_eq!(refused, 2 * depth, "each slot ends by being refused: {}", self.0);
        assert!(in_flight > 0, "{}", self.0);
        let coroutines_only = self.numbers("coroutines only");
        assert_eq!(coroutines_only[0], 0, "{}", self.0);
        assert!(coroutines_only[1] >= 1000, "{}", self.0);
    }
}

/// Runs the program, which must fail with one sentence that has all `parts` in it.
fn fail(args: &[&str], parts: &[&str]) {
    let output = run(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?}");
    assert!(error.starts_with("block_layer: ") && error.lines().count() == 1, "{args:?}: {error}");
    for part in parts {
        assert!(error.contains(part), "{args:?}: no {part:?} in {error:?}");
    }
}

/// Runs the program, which must refuse its command line with exit code 2.
fn refuse(args: &[&str], part: &str) {
    let output = run(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(error.contains(part), "{args:?}: no {part:?} in {error:?}");
}

/// A folder for one test, with an image in it.
struct Place {
    folder: TempDir,
    image: String,
}

impl Place {
    fn new(image_size: u64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let image = folder.path().join("disk.img");
        fs::write(&image, vec![7; image_size as usize]).expect("an image");
        Self { image: image.to_str().expect("a UTF-8 path").to_owned(), folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("a UTF-8 path").to_owned()
    }
}

#[test]
fn reads_of_a_bare_image_bypass_coroutines() {
    let report = Report::of(&["--depth", "16"]);
    report.assert_sound(16);
    let (bypassed, by_coroutine) = report.ways();
    assert!(bypassed >= 1000 && by_coroutine == 0, "{}", report.0);
}

#[test]
fn writes_take_coroutines() {
    let report = Report::of(&["--writes", "50"]);
    report.assert_sound(16);
    let (bypassed, by_coroutine) = report.ways();
    assert!(bypassed > 0 && by_coroutine > 0, "{}", report.0);
}

#[test]
fn a_checksum_takes_coroutines() {
    let report = Report::of(&["--filter", "checksum", "--writes", "50", "--size", "1"]);
    report.assert_sound(16);
    assert_eq!(report.ways().0, 0, "{}", report.0);
    assert!(report.0.contains("checksum > raw"), "{}", report.0);
}

#[test]
fn a_throttle_is_bypassed_below_its_rate() {
    let report = Report::of(&["--filter", "throttle=20000", "--depth", "64"]);
    report.assert_sound(64);
    let (bypassed, by_coroutine) = report.ways();
    assert!(bypassed >= 8 && by_coroutine > 0, "{}", report.0);
}

#[test]
fn a_throttle_holds_no_shutdown_up() {
    // At this rate, the queue would take more than an hour to empty.
    let output = run(&["--filter", "throttle=1", "--requests", "8", "--rounds", "1", "--depth", "4096"]);
    let report = Report(text(&output.stdout));
    assert_eq!(report.numbers("shutdowns")[2], 0, "{}", report.0);
}

#[test]
fn a_block_that_was_changed_behind_a_checksum_is_named() {
    let place = Place::new(8 * BLOCK);
    let filter = format!("checksum={}", place.path("sums"));
    let args = ["--filter", &filter, &place.image];
    Report::of(&args).assert_sound(16);
    // The sums are in their file, and still true.
    Report::of(&args).assert_sound(16);
    let image = File::options().write(true).open(&place.image).unwrap();
    image.write_all_at(b"!", 5 * BLOCK + 17).unwrap();
    fail(&args, &["offset 20480", "block 5"]);

    let other = Place::new(9 * BLOCK);
    fail(&["--filter", &filter, &other.image], &["sums", "36864"]);
}

#[test]
fn reading_leaves_an_image_as_it_is() {
    let place = Place::new(8 * BLOCK);
    Report::of(&["--filter", "checksum", &place.image]);
    assert!(fs::read(&place.image).unwrap().iter().all(|&byte| byte == 7));
}

#[test]
fn files_that_are_no_images() {
    let place = Place::new(BLOCK + 1);
    fail(&[&place.image], &["4097", "multiple of 4096"]);
    fail(&[&place.path("missing")], &["missing", "No such file"]);
    fail(&[&place.path("")], &["is a directory"]);
    fail(&["/dev/null"], &["is empty"]);
    let table = place.path("no-folder/sums");
    fail(&["--filter", &format!("checksum={table}")], &["cannot open", &table]);
}

#[test]
fn values_that_make_no_sense() {
    refuse(&["--depth", "0"], "--depth");
    refuse(&["--requests", "0"], "--requests");
    refuse(&["--rounds", "0"], "--rounds");
    refuse(&["--writes", "101"], "--writes");
    refuse(&["--size", "1", "disk.img"], "--size");
    refuse(&["--filter", "zip"], "no filter is called");
    refuse(&["--filter", "throttle"], "requests per second");
    refuse(&["--filter", "throttle=0"], "requests per second");
    refuse(&["--filter", "checksum="], "name of a file");
}
