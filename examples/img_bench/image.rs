//! The image under test: found or made, checked, opened, filled.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

use crate::Error;
use crate::cli::{Cache, Plan, SECTOR, Source, check_whole_blocks};
use crate::engine::AlignedBuf;
use crate::pattern::Pattern;
use crate::progress::Progress;

/// Bytes per read or write where the image is filled or verified as a whole.
const STRIDE: u64 = 1 << 20;

/// An image that is ready for a run.
#[derive(Debug)]
pub struct Image {
    /// Open for what the plan does, past the page cache if `direct`.
    pub file: File,
    pub direct: bool,
    /// How messages call it.
    pub name: String,
    pub size: u64,
    /// What a checked image holds, and what a writing run writes.
    pub pattern: Pattern,
    /// What the user should know about how it was opened.
    pub notes: Vec<String>,
    through_cache: File,
}

impl Image {
    /// Opens the image that the plan names, or makes one, and lays down the pattern where that is due.
    pub fn open(plan: &Plan) -> Result<Image, Error> {
        let mut place = match &plan.source {
            Source::File(path) => Place::existing(plan, path)?,
            Source::Temporary { size } => Place::temporary(*size)?,
        };
        let mut notes = Vec::new();
        let direct = match plan.cache {
            Cache::Buffered => None,
            Cache::Direct => Some(open_direct(plan, &place.path).map_err(|error| {
                let name = &place.name;
                format!("{name} can't be read directly in blocks of {} bytes: {error}", plan.block_size)
            })?),
            Cache::DirectIfPossible => open_direct(plan, &place.path)
                .map_err(|error| notes.push(format!("going through the page cache, since O_DIRECT failed: {error}")))
                .ok(),
        };
        // Open files outlast their names: a temporary image is gone with the process from here on, however that ends.
        let temporary = place.temporary.take().is_some();
        let pattern =
            if plan.verify && !plan.write && !temporary { place.pattern()? } else { Pattern { seed: plan.seed } };

        let image = Image {
            direct: direct.is_some(),
            file: match direct {
                Some(file) => file,
                None => place.through_cache.try_clone()?,
            },
            name: place.name,
            size: place.size,
            pattern,
            notes,
            through_cache: place.through_cache,
        };
        if plan.fill || temporary {
            image.fill().map_err(|error| format!("cannot fill {}: {error}", image.name))?;
        }
        Ok(image)
    }

    /// Reads the whole image, and compares it with the pattern.
    pub fn verify(&self) -> Result<(), Error> {
        self.sweep("verifying", |offset, bytes| {
            self.through_cache
                .read_exact_at(bytes, offset)
                .map_err(|error| format!("cannot read {} at offset {offset}: {error}", self.name))?;
            Ok(self.pattern.check(offset, bytes)?)
        })
    }

    /// Writes the pattern over the whole image.
    fn fill(&self) -> Result<(), Error> {
        self.sweep("filling", |offset, bytes| {
            self.pattern.fill(offset, bytes);
            Ok(self.through_cache.write_all_at(bytes, offset)?)
        })?;
        // Dirty pages would be written back by the first direct reads, in the timed run.
        Ok(self.through_cache.sync_all()?)
    }

    fn sweep(
        &self,
        what: &'static str,
        mut step: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut progress = Progress::new(what, self.size);
        let mut buffer = vec![0; STRIDE.min(self.size) as usize];
        for offset in (0..self.size).step_by(STRIDE as usize) {
            let len = STRIDE.min(self.size - offset) as usize;
            step(offset, &mut buffer[..len])?;
            progress.show(offset);
        }
        Ok(())
    }
}

/// Where an image is, opened the ordinary way.
struct Place {
    path: PathBuf,
    name: String,
    through_cache: File,
    size: u64,
    /// Deletes the file when dropped.
    temporary: Option<TempPath>,
}

impl Place {
    fn existing(plan: &Plan, path: &Path) -> Result<Place, Error> {
        let name = path.display().to_string();
        // The type comes first: merely opening a FIFO hangs, and opening a device can have effects.
        let metadata = fs::metadata(path).map_err(|error| format!("cannot open {name}: {error}"))?;
        if let Some(wrong) = wrong_type(metadata.file_type()) {
            return Err(format!("{name} is {wrong}, not an image file or a block device").into());
        }
        let purpose = if plan.write { "writing" } else { "reading" };
        let mut through_cache =
            options(plan).open(path).map_err(|error| format!("cannot open {name} for {purpose}: {error}"))?;
        // A block device has its size here, and none in its metadata.
        let size =
            through_cache.seek(SeekFrom::End(0)).map_err(|error| format!("cannot tell the size of {name}: {error}"))?;
        if size == 0 {
            return Err(format!("{name} is empty").into());
        }
        check_whole_blocks(&name, size, plan.block_size as u64)?;
        Ok(Place { path: path.to_owned(), name, through_cache, size, temporary: None })
    }

    fn temporary(size: u64) -> Result<Place, Error> {
        let folder = std::env::temp_dir();
        let name = format!("the temporary image in {}", folder.display());
        let (through_cache, path) = NamedTempFile::with_prefix("img_bench-")
            .and_then(|file| {
                file.as_file().set_len(size)?;
                Ok(file.into_parts())
            })
            .map_err(|error| format!("cannot make {name} with {size} bytes: {error}"))?;
        Ok(Place { path: path.to_path_buf(), name, through_cache, size, temporary: Some(path) })
    }

    /// The pattern that a `--write` run has left here.
    fn pattern(&self) -> Result<Pattern, Error> {
        let mut first = [0; SECTOR as usize];
        if self.size >= SECTOR {
            self.through_cache
                .read_exact_at(&mut first, 0)
                .map_err(|error| format!("cannot read {} at offset 0: {error}", self.name))?;
        }
        Pattern::of_image(&first).ok_or_else(|| {
            let name = &self.name;
            format!("{name} doesn't carry the pattern (the first mismatch is at offset 0): run with --write first")
                .into()
        })
    }
}

fn wrong_type(kind: fs::FileType) -> Option<&'static str> {
    if kind.is_dir() {
        Some("a directory")
    } else if kind.is_char_device() {
        Some("a character device")
    } else if kind.is_fifo() {
        Some("a FIFO")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        None
    }
}

fn options(plan: &Plan) -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(plan.write);
    options
}

/// Opens past the page cache, and tries it: some file systems accept the flag and refuse the read.
fn open_direct(plan: &Plan, path: &Path) -> io::Result<File> {
    if !(plan.block_size as u64).is_multiple_of(SECTOR) {
        // Some would accept this too, and go through the page cache all the same.
        let reason = format!("blocks of {} bytes are not a multiple of {SECTOR}", plan.block_size);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let file = options(plan).custom_flags(libc::O_DIRECT).open(path)?;
    file.read_at(&mut AlignedBuf::new(plan.block_size)?, 0)?;
    Ok(file)
}
