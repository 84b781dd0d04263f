//! The files that requests go to: temporary ones, without a name.

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// How large a file is: more than a core's caches hold.
pub const SIZE: u64 = 64 << 20;

/// A file of [`SIZE`] bytes.
pub type Image = File;

/// Where files are, and how they are reached.
pub trait Place {
    /// How many requests each slot makes in one time around the loop: more where they are slow, so that the beginning
    /// and the end, with fewer in flight, don't count for much.
    const PER_SLOT: u32;

    /// The file that is there.
    fn image() -> io::Result<&'static Image>;

    /// Whether there is one.
    fn probe() -> io::Result<()> {
        Self::image().map(drop)
    }
}

/// A disk, by way of the page cache, which has all of the file.
pub struct Cached;

impl Place for Cached {
    const PER_SLOT: u32 = 1;

    fn image() -> io::Result<&'static Image> {
        static IMAGE: OnceLock<io::Result<Image>> = OnceLock::new();
        shared(IMAGE.get_or_init(|| filled(on_disk()?)))
    }
}

/// A file in memory.
pub struct Tmpfs;

impl Place for Tmpfs {
    const PER_SLOT: u32 = 1;

    fn image() -> io::Result<&'static Image> {
        static IMAGE: OnceLock<io::Result<Image>> = OnceLock::new();
        shared(IMAGE.get_or_init(|| {
            let file = tempfile::tempfile_in("/dev/shm")?;
            if is_memory(&file)? { filled(file) } else { Err(io::Error::other("/dev/shm isn't a tmpfs")) }
        }))
    }
}

/// A disk, without the page cache.
pub struct Direct;

impl Place for Direct {
    const PER_SLOT: u32 = 16;

    fn image() -> io::Result<&'static Image> {
        static IMAGE: OnceLock<io::Result<Image>> = OnceLock::new();
        shared(IMAGE.get_or_init(|| {
            let file = filled(on_disk()?)?;
            // What the cache has would be looked through at each request.
            // SAFETY: the call has no memory arguments.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)
        }))
    }
}

/// In `TMPDIR`, or where temporary files are kept on a disk.
fn on_disk() -> io::Result<File> {
    let folder = env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let file = tempfile::tempfile_in(&folder)?;
    if is_memory(&file)? {
        let message = format!("{} is in memory; TMPDIR may name a folder on a disk", folder.display());
        return Err(io::Error::other(message));
    }
    Ok(file)
}

fn filled(mut file: File) -> io::Result<Image> {
    let chunk = vec![0x5a; 1 << 20];
    for _ in 0..SIZE / chunk.len() as u64 {
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(file)
}

fn is_memory(file: &File) -> io::Result<bool> {
    let mut facts = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the facts are valid to write to.
    if unsafe { libc::fstatfs(file.as_raw_fd(), facts.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: integers, for which zeroes are valid too.
    Ok(unsafe { facts.assume_init() }.f_type == libc::TMPFS_MAGIC)
}

fn shared(image: &'static io::Result<Image>) -> io::Result<&'static Image> {
    image.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))
}
