//! What survives a switch, and what is shared: vector registers, integer registers, floating-point control words.

use std::hint::black_box;
use std::process::Command;

use aioco::{Coroutine, yield_now};

/// Works on many live values at once, so that every register of both kinds is in use over each switch.
#[inline(never)]
fn churn(seed: u64, switch: impl Fn()) -> (u64, [u64; 12]) {
    let mut integers: [u64; 12] = std::array::from_fn(|i| seed.wrapping_mul(i as u64 + 3));
    let mut floats: [f64; 24] = std::array::from_fn(|i| seed as f64 + i as f64 / 7.0);
    for round in 0..200u64 {
        for (i, value) in integers.iter_mut().enumerate() {
            *value = value.rotate_left(7).wrapping_add(round ^ i as u64);
        }
        for value in &mut floats {
            *value = *value * 1.0001 + round as f64;
        }
        switch();
    }
    (floats.iter().fold(0, |bits, value| bits.rotate_left(5) ^ value.to_bits()), integers)
}

#[test]
fn live_values_survive_switches_in_both_directions() {
    let expected: Vec<_> = (0..4).map(|seed| churn(seed, || ())).collect();
    let coroutines: Vec<_> = (0..3)
        .map(|seed| {
            let expected = expected[seed as usize];
            Coroutine::new(move || assert_eq!(churn(black_box(seed), yield_now), expected)).unwrap()
        })
        .collect();
    // The enterer's values live over the same switches.
    let ours = churn(black_box(3), || coroutines.iter().for_each(Coroutine::enter));
    assert_eq!(ours, expected[3]);
    coroutines.iter().for_each(Coroutine::enter);
    assert!(coroutines.iter().all(Coroutine::is_finished));
}

#[cfg(target_arch = "x86_64")]
mod control_words {
    use super::*;
    use std::arch::asm;

    const ROUND_UP: u32 = 0b10 << 13;
    const ROUNDING: u32 = 0b11 << 13;

    fn mxcsr() -> u32 {
        let mut word = 0u32;
        // SAFETY: stores the control word to a local.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut word, options(nostack, preserves_flags)) };
        word
    }

    fn set_mxcsr(word: u32) {
        // SAFETY: the word was read before, but for the rounding mode; the caller puts it back before it computes.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &word, options(nostack, preserves_flags, readonly)) };
    }

    #[test]
    fn the_control_words_are_the_threads_not_the_coroutines() {
        let before = mxcsr();
        let co = Coroutine::new(move || {
            set_mxcsr(before & !ROUNDING | ROUND_UP);
            yield_now();
            assert_eq!(mxcsr() & ROUNDING, before & ROUNDING, "what the enterer set is seen inside");
        })
        .unwrap();
        co.enter();
        let inside = mxcsr();
        set_mxcsr(before);
        assert_eq!(inside & ROUNDING, ROUND_UP, "what the coroutine set is seen outside");
        co.enter();
    }

    #[test]
    fn the_program_is_not_marked_as_ready_for_shadow_stacks() {
        let program = std::env::current_exe().unwrap();
        let Ok(notes) = Command::new("readelf").arg("--notes").arg(program).output() else {
            eprintln!("skipped: readelf is not installed");
            return;
        };
        assert!(!String::from_utf8_lossy(&notes.stdout).contains("SHSTK"));
    }
}
