//! The group `block`: what it takes to read and write files at random offsets.

use super::{Case, Contestant, Group, Method};
use crate::block::{
    Aioco, Awaited, Bypass, Cached, Compio, Direct, Engine, Monoio, Place, Plain, RawRing, Tmpfs, Tokio, TokioUring,
    raw_ring, reads, units, writes,
};

/// A case: one of the loops, somewhere, at a depth, for these engines.
///
/// `case!("read-tmpfs-qd8", "what it is about", reads in Tmpfs at 8: [Aioco, RawRing])`
macro_rules! case {
    ($name:literal, $about:literal, $run:ident in $place:ident at $depth:literal: [$($engine:ident),* $(,)?]) => {
        Case {
            name: $name,
            about: $about,
            method: Method::Block {
                place: $place::probe,
                units: units::<$place>($depth),
                contestants: &[$(Contestant { runtime: $engine::NAME, run: $run::<$engine, $place, $depth> }),*],
            },
        }
    };
}

/// A case for those who can have more than one request under way.
macro_rules! deep {
    ($name:literal, $about:literal, $run:ident in $place:ident at $depth:literal) => {
        case!(
            $name,
            $about,
            $run in $place at $depth: [Aioco, Awaited, Bypass, RawRing, Monoio, Compio, TokioUring, Tokio]
        )
    };
}

/// A case for all.
macro_rules! shallow {
    ($name:literal, $about:literal, $run:ident in $place:ident) => {
        case!(
            $name,
            $about,
            $run in $place at 1: [Aioco, Awaited, Bypass, RawRing, Plain, Monoio, Compio, TokioUring, Tokio]
        )
    };
}

pub const GROUP: Group = Group {
    name: "block",
    about: "reading and writing 4 KiB at random offsets of a file, so many at once (qd), on one core, which the \
            kernel's and tokio's threads share; per request; aioco-async: tokio's tasks await aioco's coroutines",
    baseline: RawRing::NAME,
    probes: &[
        Contestant { runtime: RawRing::NAME, run: raw_ring::probe },
        Contestant { runtime: Monoio::NAME, run: raw_ring::probe },
        Contestant { runtime: Compio::NAME, run: raw_ring::probe },
        Contestant { runtime: TokioUring::NAME, run: raw_ring::probe },
    ],
    cases: &[
        shallow!("read-cached-qd1", "from the page cache", reads in Cached),
        deep!("read-cached-qd8", "the same, 8 at once", reads in Cached at 8),
        deep!("read-cached-qd64", "the same, 64 at once", reads in Cached at 64),
        shallow!("read-tmpfs-qd1", "from a tmpfs (/dev/shm)", reads in Tmpfs),
        deep!("read-tmpfs-qd8", "the same, 8 at once", reads in Tmpfs at 8),
        deep!("read-tmpfs-qd64", "the same, 64 at once", reads in Tmpfs at 64),
        shallow!("read-direct-qd1", "from the disk (O_DIRECT; in TMPDIR or /var/tmp)", reads in Direct),
        deep!("read-direct-qd8", "the same, 8 at once", reads in Direct at 8),
        deep!("read-direct-qd64", "the same, 64 at once", reads in Direct at 64),
        shallow!("write-cached-qd1", "over what is in the page cache", writes in Cached),
        deep!("write-cached-qd8", "the same, 8 at once", writes in Cached at 8),
        deep!("write-cached-qd64", "the same, 64 at once", writes in Cached at 64),
        shallow!("write-tmpfs-qd1", "over what is on a tmpfs", writes in Tmpfs),
        deep!("write-tmpfs-qd8", "the same, 8 at once", writes in Tmpfs at 8),
        deep!("write-tmpfs-qd64", "the same, 64 at once", writes in Tmpfs at 64),
    ],
};
