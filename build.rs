//! Names the choice of the switch's back end once, as `cfg(jump_switch)`; see `src/coroutine/switch`.

use std::env;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(jump_switch)");
    println!("cargo::rerun-if-changed=build.rs");
    let target = |key: &str| env::var(key).unwrap_or_default();
    let has_jump = matches!(target("CARGO_CFG_TARGET_ARCH").as_str(), "x86_64" | "aarch64")
        && target("CARGO_CFG_TARGET_OS") == "linux"
        && target("CARGO_CFG_TARGET_POINTER_WIDTH") == "64"
        && target("CARGO_CFG_TARGET_ENDIAN") == "little";
    if has_jump && env::var_os("CARGO_FEATURE_PORTABLE_SWITCH").is_none() {
        println!("cargo::rustc-cfg=jump_switch");
    }
}
