//! Where an image has data, and where holes, which read as zeroes.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// The most steps of a search, and so the most extents of an answer: who wants more asks again, and the others have their
/// turn.
const MAX_STEPS: usize = 128;

/// A range, of which everything is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub len: u32,
    pub is_hole: bool,
}

/// The extents from `offset` on, so many bytes of them or fewer, and at least one; `only_one` wants no more than that.
/// Their ends are multiples of `alignment`, as offset and length are; only what is a hole throughout counts as one.
///
/// It doesn't wait for others: what the kernel has to read of the file system's tables is little, and mostly there.
pub fn extents(file: impl AsFd, offset: u64, len: u32, alignment: u32, only_one: bool) -> Vec<Extent> {
    let file = file.as_fd();
    let end = offset + u64::from(len);
    let seek = |from, whence| seek(file, from, whence).map_or(end, |found| found.clamp(from, end));
    collect(offset, end, alignment.into(), if only_one { 1 } else { MAX_STEPS }, seek)
}

/// Where there is the next of a kind, at `from` or behind it; `None` if there is none, or if the file doesn't say where it
/// has holes (a block device doesn't): then all of it is data.
fn seek(file: impl AsFd, from: u64, whence: Whence) -> Option<u64> {
    let is_data = matches!(whence, Whence::SeekData);
    // The file has one position, which nobody uses.
    match lseek(file, from.try_into().ok()?, whence) {
        Ok(found) => u64::try_from(found).ok(),
        Err(Errno::ENXIO) => None,
        Err(_) => is_data.then_some(from),
    }
}

/// `seek` finds the next data, or the next hole, at most at `end`.
fn collect(start: u64, end: u64, alignment: u64, most: usize, seek: impl Fn(u64, Whence) -> u64) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut at = start;
    for _ in 0..MAX_STEPS {
        if at == end {
            break;
        }
        let data = seek(at, Whence::SeekData);
        // The block in which data begins isn't a hole.
        let data = if data < end { data - data % alignment } else { end };
        let is_hole = data > at;
        let next = match is_hole {
            true => data,
            // There is some in this block, wherever the next hole begins.
            false => seek(at, Whence::SeekHole).max(at + 1).next_multiple_of(alignment).min(end),
        };
        let len = (next - at) as u32;
        let count = extents.len();
        match extents.last_mut() {
            Some(last) if last.is_hole == is_hole => last.len += len,
            _ if count == most => break,
            _ => extents.push(Extent { len, is_hole }),
        }
        at = next;
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// What there is from `start` to `end`, if there is data in these ranges.
    fn found(data: &[(u64, u64)], start: u64, end: u64, alignment: u64, most: usize) -> Vec<(u32, bool)> {
        let is_data = |at| data.iter().any(|&(from, to)| (from..to).contains(&at));
        let seek = |from: u64, whence| {
            let wanted = matches!(whence, Whence::SeekData);
            (from..end).find(|&at| is_data(at) == wanted).unwrap_or(end)
        };
        collect(start, end, alignment, most, seek).iter().map(|extent| (extent.len, extent.is_hole)).collect()
    }

    #[test]
    fn data_and_holes_take_turns() {
        let data = &[(10, 20), (40, 50)];
        assert_eq!(found(data, 0, 60, 1, 9), [(10, true), (10, false), (20, true), (10, false), (10, true)]);
        assert_eq!(found(data, 12, 45, 1, 9), [(8, false), (20, true), (5, false)]);
        assert_eq!(found(data, 20, 40, 1, 9), [(20, true)]);
        assert_eq!(found(data, 0, 60, 1, 2), [(10, true), (10, false)]);
        assert_eq!(found(data, 13, 60, 1, 1), [(7, false)]);
    }

    #[test]
    fn a_block_with_some_data_is_data() {
        assert_eq!(found(&[(10, 11)], 0, 32, 8, 9), [(8, true), (8, false), (16, true)]);
        assert_eq!(found(&[(7, 9)], 0, 32, 8, 9), [(16, false), (16, true)]);
        assert_eq!(found(&[(0, 999)], 0, 999, 1, 9), [(999, false)]);
        // Two that touch are one.
        assert_eq!(found(&[(1, 2), (9, 10), (30, 31)], 0, 32, 8, 9), [(16, false), (8, true), (8, false)]);
        assert_eq!(found(&[(1, 2), (9, 10), (30, 31)], 0, 32, 8, 1), [(16, false)]);
    }

    #[test]
    fn a_search_has_an_end() {
        let data: Vec<(u64, u64)> = (0..1000).map(|number| (8 * number, 8 * number + 1)).collect();
        assert_eq!(found(&data, 0, 8000, 4, 9999).len(), MAX_STEPS);
        assert_eq!(found(&data, 0, 8000, 8, 9999), [(8 * MAX_STEPS as u32, false)]);
    }

    #[test]
    fn a_file_says_where_its_holes_are() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[1; 1 << 16], 1 << 18).unwrap();
        let whole = extents(&file, 0, 1 << 20, 1, false);
        assert_eq!(whole.iter().map(|extent| extent.len).sum::<u32>(), 1 << 20);
        let at = |wanted: u32| {
            let mut end = 0;
            let covers = |extent: &&Extent| {
                end += extent.len;
                wanted < end
            };
            whole.iter().find(covers).unwrap().is_hole
        };
        // A file system may know no holes, or larger blocks than this.
        assert!(!at(1 << 18) && !at((1 << 18) + (1 << 16) - 1), "{whole:?}");
        let what_has_no_position = std::io::pipe().unwrap().0;
        assert_eq!(extents(&what_has_no_position, 4096, 4096, 512, false), [Extent { len: 4096, is_hole: false }]);
    }
}
