//! Records the compiler's version, which the report prints with its figures.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env::var_os("RUSTC")
        .and_then(|rustc| Command::new(rustc).arg("--version").output().ok())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .unwrap_or_else(|| String::from("unknown rustc"));
    println!("cargo::rustc-env=PEERS_RUSTC={}", version.trim());
}
