//! What an image is filled with, so that any part of it can be checked without knowing who wrote it when.
//!
//! A sector of 512 bytes, all numbers little-endian:
//!
//! ```text
//!   0  magic           b"aioco1\r\n"
//!   8  offset of this sector in the image
//!  16  seed
//!  24  61 numbers of a SplitMix64 sequence that starts at a mix of seed and offset
//! ```
//!
//! A block that landed at the wrong place, of another run, torn, or never written is told from a good one. The noise
//! keeps file systems from compressing or deduplicating it.

use std::fmt;

use crate::plan::SECTOR;

const MAGIC: [u8; 8] = *b"aioco1\r\n";
const SECTOR_LEN: usize = SECTOR as usize;

/// The pattern with one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub seed: u64,
}

/// The first sector of a checked range that is not what it should be.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Where the first wrong byte is in the image.
    pub offset: u64,
    found: Found,
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    NoMagic,
    SectorOf(u64),
    Seed { found: u64, expected: u64 },
    Byte { found: u8, expected: u8 },
}

impl Pattern {
    /// The pattern that an image with this first sector carries.
    pub fn of_image(first_sector: &[u8; SECTOR_LEN]) -> Option<Pattern> {
        let pattern = Pattern { seed: number_at(first_sector, 16) };
        pattern.check(0, first_sector).is_ok().then_some(pattern)
    }

    /// Writes to `bytes` what the image holds from `offset` on.
    pub fn fill(self, offset: u64, bytes: &mut [u8]) {
        for (at, piece) in sectors(offset, bytes.len()) {
            let sector = self.sector(at.sector);
            bytes[piece.clone()].copy_from_slice(&sector[at.skip..at.skip + piece.len()]);
        }
    }

    /// Compares `bytes`, read from `offset` on, with the pattern.
    pub fn check(self, offset: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        for (at, piece) in sectors(offset, bytes.len()) {
            let expected = &self.sector(at.sector)[at.skip..at.skip + piece.len()];
            let found = &bytes[piece];
            if found != expected {
                return Err(self.mismatch(at, found, expected));
            }
        }
        Ok(())
    }

    fn sector(self, offset: u64) -> [u8; SECTOR_LEN] {
        let mut sector = [0; SECTOR_LEN];
        sector[..8].copy_from_slice(&MAGIC);
        sector[8..16].copy_from_slice(&offset.to_le_bytes());
        sector[16..24].copy_from_slice(&self.seed.to_le_bytes());
        let mut noise = SplitMix64::new(SplitMix64::new(self.seed).next() ^ offset);
        for word in sector[24..].chunks_exact_mut(8) {
            word.copy_from_slice(&noise.next().to_le_bytes());
        }
        sector
    }

    #[cold]
    fn mismatch(self, at: At, found: &[u8], expected: &[u8]) -> Mismatch {
        let first = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
        let found = match <&[u8; SECTOR_LEN]>::try_from(found) {
            Ok(sector) if sector[..8] != MAGIC => Found::NoMagic,
            Ok(sector) if number_at(sector, 8) != at.sector => Found::SectorOf(number_at(sector, 8)),
            Ok(sector) if number_at(sector, 16) != self.seed => {
                Found::Seed { found: number_at(sector, 16), expected: self.seed }
            }
            // A piece of a sector, or a sound header with wrong data below it.
            _ => Found::Byte { found: found[first], expected: expected[first] },
        };
        Mismatch { offset: at.sector + (at.skip + first) as u64, found }
    }
}

/// A place in the image: `skip` bytes into the sector that starts at `sector`.
#[derive(Clone, Copy)]
struct At {
    sector: u64,
    skip: usize,
}

/// Cuts `len` bytes that start at `offset` in the image where sectors begin.
fn sectors(offset: u64, len: usize) -> impl Iterator<Item = (At, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let here = offset + done as u64;
        let skip = (here % SECTOR) as usize;
        let piece = done..len.min(done + SECTOR_LEN - skip);
        done = piece.end;
        Some((At { sector: here - skip as u64, skip }, piece))
    })
}

fn number_at(sector: &[u8; SECTOR_LEN], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| sector[at + i]))
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the first mismatch is at offset {}: ", self.offset)?;
        match self.found {
            Found::NoMagic => write!(f, "this sector doesn't carry the pattern of a --write run"),
            Found::SectorOf(offset) => write!(f, "this sector belongs at offset {offset}"),
            Found::Seed { found, expected } => write!(f, "this sector was written with seed {found}, not {expected}"),
            Found::Byte { found, expected } => write!(f, "found byte {found:#04x}, expected {expected:#04x}"),
        }
    }
}

impl std::error::Error for Mismatch {}

/// Vigna's SplitMix64: one multiplication chain per number, any seed is good.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64 { state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, as even as 64 bits allow.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATTERN: Pattern = Pattern { seed: 7 };

    fn filled(offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        PATTERN.fill(offset, &mut bytes);
        bytes
    }

    #[test]
    fn splitmix64_is_the_published_one() {
        let mut numbers = SplitMix64::new(1_234_567);
        assert_eq!(numbers.next(), 6_457_827_717_110_365_317);
        assert_eq!(numbers.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn any_cut_of_the_image_is_the_same_bytes() {
        let whole = filled(0, 4096);
        for (offset, len) in [(0, 1), (1, 511), (100, 1000), (511, 2), (512, 512), (4000, 96)] {
            let part = filled(offset as u64, len);
            assert_eq!(part, whole[offset..offset + len], "{len} bytes at {offset}");
            assert_eq!(PATTERN.check(offset as u64, &part), Ok(()));
        }
    }

    #[test]
    fn the_seed_is_found_in_the_first_sector() {
        let first = filled(0, 512);
        assert_eq!(Pattern::of_image(first[..].try_into().unwrap()), Some(PATTERN));
        assert_eq!(Pattern::of_image(&[0; 512]), None);
        // The header alone doesn't make a pattern.
        let mut torn = first;
        torn[511] ^= 1;
        assert_eq!(Pattern::of_image(torn[..].try_into().unwrap()), None);
    }

    #[test]
    fn every_kind_of_damage_is_told() {
        let check = |bytes: &[u8]| PATTERN.check(8192, bytes).unwrap_err();

        let mut flipped = filled(8192, 4096);
        flipped[1000] ^= 0xff;
        assert_eq!(check(&flipped).offset, 9192);

        let mut zeroed = filled(8192, 4096);
        zeroed[512..1024].fill(0);
        assert_eq!(check(&zeroed), Mismatch { offset: 8704, found: Found::NoMagic });

        assert_eq!(check(&filled(0, 4096)).found, Found::SectorOf(0));

        let mut other = vec![0; 512];
        Pattern { seed: 8 }.fill(8192, &mut other);
        assert_eq!(check(&other).found, Found::Seed { found: 8, expected: 7 });
    }
}
