//! The image at the bottom of the chain, and the files beside it.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use aioco::block;

use crate::Error;
use crate::cli::Options;
use crate::driver::BLOCK;

const DEFAULT_MIB: u64 = 16;

pub struct Image {
    pub file: File,
    /// In bytes; whole blocks.
    pub size: u64,
    pub is_writable: bool,
    /// It is ours, and each block has the [pattern](fill_block) in it.
    pub has_pattern: bool,
    /// A table of sums for as long as the program runs.
    table: File,
}

impl Image {
    /// Opens the image that was asked for, or makes one.
    ///
    /// # Errors
    ///
    /// If there is none, or it isn't made of whole blocks.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let table = tempfile::tempfile()?;
        let is_writable = options.writes > 0;
        let mut how = File::options();
        how.read(true).write(is_writable);
        if options.direct {
            how.custom_flags(libc::O_DIRECT);
        }
        if let Some(path) = &options.file {
            let name = path.display();
            let file = open(&how, path).map_err(|error| format!("cannot open {name}: {error}"))?;
            let size = size(&file).map_err(|error| format!("cannot use {name}: {error}"))?;
            return Ok(Self { file, size, is_writable, has_pattern: false, table });
        }
        let size = options.size.unwrap_or(DEFAULT_MIB) << 20;
        let folder = env::temp_dir();
        let in_folder = |error| format!("cannot make a temporary image in {}: {error}", folder.display());
        let file = temporary(&folder, size, &how).map_err(in_folder)?;
        Ok(Self { file, size, is_writable, has_pattern: true, table })
    }

    /// Opens a table of sums, new if there is none; or without a name, the one that is gone at the end.
    pub fn open_table(&self, path: Option<&Path>) -> Result<block::File, Error> {
        let Some(path) = path else { return Ok(block::File::new(self.table.try_clone()?)?) };
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let table = file.and_then(block::File::new);
        table.map_err(|error| format!("cannot open {}: {error}", path.display()).into())
    }
}

/// Writes the pattern of the block at this offset.
pub fn fill_block(block: &mut [u8], offset: u64) {
    let (words, _) = block.as_chunks_mut();
    words.fill(offset.to_le_bytes());
}

/// Whether the pattern is there, at both ends.
pub fn is_filled(block: &[u8], offset: u64) -> bool {
    let word = &offset.to_le_bytes()[..];
    block.starts_with(word) && block.ends_with(word)
}

fn open(how: &OpenOptions, path: &Path) -> io::Result<File> {
    how.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => io::Error::other("its file system has no direct I/O"),
        _ => error,
    })
}

fn size(mut file: &File) -> Result<u64, String> {
    if file.metadata().is_ok_and(|facts| facts.is_dir()) {
        return Err("it is a directory".to_owned());
    }
    match file.seek(SeekFrom::End(0)) {
        Ok(0) => Err("it is empty".to_owned()),
        Ok(size) if !size.is_multiple_of(BLOCK as u64) => {
            Err(format!("its size, {size} bytes, is not a multiple of {BLOCK}"))
        }
        Ok(size) => Ok(size),
        Err(error) => Err(error.to_string()),
    }
}

fn temporary(folder: &Path, size: u64, how: &OpenOptions) -> io::Result<File> {
    let mut file = tempfile::tempfile_in(folder)?;
    let mut chunk = vec![0; 1 << 20];
    for start in (0..size).step_by(chunk.len()) {
        for (block, offset) in chunk.chunks_mut(BLOCK).zip((start..).step_by(BLOCK)) {
            fill_block(block, offset);
        }
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    open(how, Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
}
