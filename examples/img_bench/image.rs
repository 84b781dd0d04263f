//! The images under test: found or made, checked, opened, filled.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aioco::block::AlignedBuf;
use tempfile::{NamedTempFile, TempPath};

use crate::Error;
use crate::job::Extent;
use crate::pattern::Pattern;
use crate::plan::{Cache, Direct, Images, Place, Plan, SECTOR, Source, check_offset, check_whole_blocks};
use crate::progress::Progress;
use crate::usage::is_in_memory;

/// Bytes per read or write where an image is filled or verified as a whole.
const STRIDE: u64 = 1 << 20;

/// Images that are used together, ready for a run.
#[derive(Debug)]
pub struct Target {
    pub kind: Kind,
    pub images: Vec<Image>,
    /// What the user should know about how they were opened.
    pub notes: Vec<String>,
}

/// What keeps the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A disk, without the page cache.
    Disk,
    PageCache,
    Tmpfs,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Disk => "disk",
            Kind::PageCache => "page-cache",
            Kind::Tmpfs => "tmpfs",
        })
    }
}

impl Target {
    /// Opens the images, or makes one, and lays down the pattern where that is due.
    pub fn open(plan: &Plan, images: &Images) -> Result<Target, Error> {
        let mut notes = Vec::new();
        let images: Vec<_> = match &images.source {
            Source::Files(paths) => {
                let open = |path: &PathBuf| Image::open(plan, images.cache, Found::existing(plan, path)?, &mut notes);
                paths.iter().map(open).collect::<Result<_, _>>()?
            }
            Source::Temporary { size, place } => {
                vec![Image::open(plan, images.cache, Found::temporary(*size, *place)?, &mut notes)?]
            }
        };
        let first = &images[0];
        let kind = if is_in_memory(&first.file)? {
            Kind::Tmpfs
        } else if first.direct {
            Kind::Disk
        } else {
            Kind::PageCache
        };
        Ok(Target { kind, images, notes })
    }

    /// What a job may use.
    pub fn extents(&self, plan: &Plan) -> Vec<Extent> {
        let extent = |image: &Image| Extent {
            file: image.file.clone(),
            start: plan.offset,
            end: image.size,
            pattern: image.pattern,
        };
        self.images.iter().map(extent).collect()
    }
}

/// An image that is ready for a run.
#[derive(Debug)]
pub struct Image {
    /// Open for what the plan does, past the page cache if `direct`.
    pub file: Arc<File>,
    pub direct: bool,
    /// How messages call it.
    pub name: String,
    pub size: u64,
    /// What a checked image holds, and what a writing run writes.
    pub pattern: Pattern,
    through_cache: File,
}

impl Image {
    fn open(plan: &Plan, cache: Cache, mut found: Found, notes: &mut Vec<String>) -> Result<Image, Error> {
        let direct = match cache.direct {
            Direct::No => None,
            Direct::Yes => Some(open_direct(plan, cache, &found.path).map_err(|error| {
                let name = &found.name;
                format!("{name} can't be read directly in blocks of {} bytes: {error}", plan.block_size)
            })?),
            Direct::IfPossible => open_direct(plan, cache, &found.path)
                .map_err(|error| notes.push(format!("going through the page cache, since O_DIRECT failed: {error}")))
                .ok(),
        };
        let is_direct = direct.is_some();
        let file = match direct {
            Some(file) => file,
            None => {
                options(plan, cache, 0).open(&found.path).map_err(|error| cannot_open(plan, &found.name, &error))?
            }
        };
        // Open files outlast their names: a temporary image is gone with the process from here on, however that ends.
        let temporary = found.temporary.take().is_some();
        let writes = plan.ops.iter().any(|op| op.writes());
        let pattern = if plan.verify && !writes && !temporary { found.pattern()? } else { Pattern { seed: plan.seed } };
        let image = Image {
            direct: is_direct,
            file: Arc::new(file),
            name: found.name,
            size: found.size,
            pattern,
            through_cache: found.through_cache,
        };
        if plan.fill || temporary {
            image.fill(plan).map_err(|error| format!("cannot fill {}: {error}", image.name))?;
        }
        Ok(image)
    }

    /// Reads the whole image, and compares it with the pattern.
    pub fn verify(&self, plan: &Plan) -> Result<(), Error> {
        self.sweep(plan, "verifying", |offset, bytes| {
            self.through_cache
                .read_exact_at(bytes, offset)
                .map_err(|error| format!("cannot read {} at offset {offset}: {error}", self.name))?;
            Ok(self.pattern.check(offset, bytes).map_err(|mismatch| format!("{}: {mismatch}", self.name))?)
        })
    }

    /// Writes the pattern over the whole image.
    fn fill(&self, plan: &Plan) -> Result<(), Error> {
        self.sweep(plan, "filling", |offset, bytes| {
            self.pattern.fill(offset, bytes);
            Ok(self.through_cache.write_all_at(bytes, offset)?)
        })?;
        // Dirty pages would be written back by the first direct reads, in the timed run.
        Ok(self.through_cache.sync_all()?)
    }

    fn sweep(
        &self,
        plan: &Plan,
        what: &'static str,
        mut step: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut progress = Progress::new(what, self.size, plan.quiet);
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
struct Found {
    path: PathBuf,
    name: String,
    through_cache: File,
    size: u64,
    /// Deletes the file when dropped.
    temporary: Option<TempPath>,
}

impl Found {
    fn existing(plan: &Plan, path: &Path) -> Result<Found, Error> {
        let name = path.display().to_string();
        // The type comes first: merely opening a FIFO hangs, and opening a device can have effects.
        let metadata = fs::metadata(path).map_err(|error| format!("cannot open {name}: {error}"))?;
        if let Some(wrong) = wrong_type(metadata.file_type()) {
            return Err(format!("{name} is {wrong}, not an image file or a block device").into());
        }
        let plainly = Cache { direct: Direct::No, stable: false };
        let mut through_cache =
            options(plan, plainly, 0).open(path).map_err(|error| cannot_open(plan, &name, &error))?;
        // A block device has its size here, and none in its metadata.
        let size =
            through_cache.seek(SeekFrom::End(0)).map_err(|error| format!("cannot tell the size of {name}: {error}"))?;
        if size == 0 {
            return Err(format!("{name} is empty").into());
        }
        check_whole_blocks(&name, size, plan.block_size as u64)?;
        check_offset(&name, size, plan.offset, plan.block_size as u64)?;
        Ok(Found { path: path.to_owned(), name, through_cache, size, temporary: None })
    }

    fn temporary(size: u64, place: Place) -> Result<Found, Error> {
        let (folders, wants_memory) = match place {
            Place::Anywhere => return Found::temporary_in(&std::env::temp_dir(), size),
            Place::Disk => (vec![std::env::temp_dir(), PathBuf::from("/var/tmp")], false),
            Place::Memory => (vec![PathBuf::from("/dev/shm")], true),
        };
        for folder in &folders {
            let folder_file = File::open(folder).and_then(|file| is_in_memory(&file));
            if folder_file.is_ok_and(|is_memory| is_memory == wants_memory) {
                return Found::temporary_in(folder, size);
            }
        }
        let tried: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        let what = if wants_memory { "in memory (tmpfs)" } else { "on a disk" };
        Err(format!("no temporary image {what}: {} is none", tried.join(", nor ")).into())
    }

    fn temporary_in(folder: &Path, size: u64) -> Result<Found, Error> {
        let name = format!("the temporary image in {}", folder.display());
        let (through_cache, path) = tempfile::Builder::new()
            .prefix("img_bench-")
            .tempfile_in(folder)
            .and_then(|file: NamedTempFile| {
                file.as_file().set_len(size)?;
                Ok(file.into_parts())
            })
            .map_err(|error| format!("cannot make {name} with {size} bytes: {error}"))?;
        Ok(Found { path: path.to_path_buf(), name, through_cache, size, temporary: Some(path) })
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

fn cannot_open(plan: &Plan, name: &str, error: &io::Error) -> Error {
    let purpose = if plan.ops.iter().any(|op| op.writes()) { "writing" } else { "reading" };
    format!("cannot open {name} for {purpose}: {error}").into()
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

fn options(plan: &Plan, cache: Cache, flags: i32) -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(plan.ops.iter().any(|op| op.writes()));
    options.custom_flags(if cache.stable { flags | libc::O_DSYNC } else { flags });
    options
}

/// Opens past the page cache, and tries it: some file systems accept the flag and refuse the read.
fn open_direct(plan: &Plan, cache: Cache, path: &Path) -> io::Result<File> {
    for (what, value) in [("blocks of", plan.block_size as u64), ("steps of", plan.step), ("an offset of", plan.offset)]
    {
        if !value.is_multiple_of(SECTOR) {
            // Some would accept this too, and go through the page cache all the same.
            let reason = format!("{what} {value} bytes are not a multiple of {SECTOR}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
    }
    let file = options(plan, cache, libc::O_DIRECT).open(path)?;
    file.read_at(&mut AlignedBuf::new(plan.block_size, 4096), plan.offset)?;
    Ok(file)
}
