//! What is served: a raw image under a name.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aioco::block;

use crate::Error;
use crate::extents::{self, Extent};
use crate::protocol::{Errno, Failure, MAX_PAYLOAD, Request, command, command_flag, transmission_flag};
use crate::rate::Rate;

/// An image, served to any number of connections on any thread.
pub struct Export {
    pub name: String,
    pub path: PathBuf,
    pub size: u64,
    pub read_only: bool,
    pub block_sizes: BlockSizes,
    file: block::File,
    rate: Option<Rate>,
}

/// Limits of requests, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this.
    pub minimum: u32,
    pub preferred: u32,
    /// Of the payload.
    pub maximum: u32,
}

/// How images are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    pub read_only: bool,
    pub direct: bool,
    /// Requests per second.
    pub throttle: Option<u32>,
}

impl Export {
    pub fn open(name: String, path: &Path, mode: Mode) -> Result<Self, Error> {
        let shown = path.display();
        let mut options = OpenOptions::new();
        options.read(true).write(!mode.read_only).custom_flags(libc::O_CLOEXEC);
        if mode.direct {
            options.custom_flags(libc::O_CLOEXEC | libc::O_DIRECT);
        }
        // Before it is opened, since opening a FIFO waits.
        let kind = path.metadata().map_err(|error| format!("cannot look at {shown}: {error}"))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(format!("{shown} is neither a file nor a block device").into());
        }
        let mut file = options.open(path).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem if !mode.read_only => {
                    " (--read-only serves it to readers)"
                }
                io::ErrorKind::InvalidInput if mode.direct => " (its file system may not know O_DIRECT)",
                _ => "",
            };
            format!("cannot open {shown}: {error}{hint}")
        })?;
        let size = file.seek(SeekFrom::End(0)).map_err(|error| format!("cannot find the end of {shown}: {error}"))?;
        Self::new(name, path, file, size, mode)
    }

    fn new(name: String, path: &Path, file: File, size: u64, mode: Mode) -> Result<Self, Error> {
        let file = block::File::new(file)?;
        let (_, alignment) = file.alignment();
        let minimum = alignment.next_power_of_two();
        if minimum > 1 << 16 {
            return Err(format!("{} has blocks of {minimum} bytes, and 65536 is the most", path.display()).into());
        }
        let block_sizes = BlockSizes { minimum, preferred: minimum.max(4096), maximum: MAX_PAYLOAD };
        // What isn't a whole block nobody could reach.
        let size = size - size % u64::from(minimum);
        let (read_only, rate) = (mode.read_only, mode.throttle.map(Rate::new));
        Ok(Self { name, path: path.to_owned(), size, read_only, block_sizes, file, rate })
    }

    /// What it can do, as clients are told.
    pub fn flags(&self) -> u16 {
        use transmission_flag::*;
        // All connections share the file, so a flush on one is a flush of what was written on any.
        let always = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_DF | CAN_MULTI_CONN;
        always | if self.read_only { READ_ONLY } else { SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO }
    }

    /// Whether a request makes sense, and is allowed. Says nothing about how long a payload may be.
    pub fn check(&self, request: &Request) -> Result<(), Failure> {
        let Request { flags, command, offset, len, .. } = *request;
        let (changes, known_flags) = match command {
            command::READ => (false, command_flag::DONT_FRAGMENT),
            command::WRITE | command::TRIM => (true, 0),
            command::WRITE_ZEROES => (true, command_flag::NO_HOLE | command_flag::FAST_ZERO),
            command::FLUSH => (false, 0),
            command::BLOCK_STATUS => (false, command_flag::REQUEST_ONE),
            _ => return Err(Failure::new(Errno::Invalid, format!("unknown command {command}"))),
        };
        if flags & !(known_flags | command_flag::FUA) != 0 {
            return Err(Failure::new(Errno::Invalid, format!("command {command} doesn't have the flags {flags:#x}")));
        }
        if changes && self.read_only {
            return Err(Failure::new(Errno::NotPermitted, "the export is read-only"));
        }
        if command == command::BLOCK_STATUS && len == 0 {
            return Err(Failure::new(Errno::Invalid, "nothing has no extents"));
        }
        let minimum = u64::from(self.block_sizes.minimum);
        if command == command::FLUSH {
            return match (offset, len) {
                (0, 0) => Ok(()),
                _ => Err(Failure::new(Errno::Invalid, "a flush is of everything")),
            };
        }
        if !offset.is_multiple_of(minimum) || !u64::from(len).is_multiple_of(minimum) {
            return Err(Failure::new(Errno::Invalid, format!("not aligned to blocks of {minimum} bytes")));
        }
        if offset.checked_add(len.into()).is_none_or(|end| end > self.size) {
            let errno = match command {
                command::WRITE | command::WRITE_ZEROES => Errno::NoSpace,
                _ => Errno::Invalid,
            };
            let size = self.size;
            return Err(Failure::new(errno, format!("{len} bytes at {offset} aren't in an export of {size} bytes")));
        }
        Ok(())
    }

    /// Waits until another request may be carried out.
    pub fn pass(&self) {
        if let Some(rate) = &self.rate {
            rate.pass();
        }
    }

    /// Holds no request back any more.
    pub fn hurry(&self) {
        if let Some(rate) = &self.rate {
            rate.hurry();
        }
    }

    pub fn read(&self, request: &Request, buffer: &mut [u8]) -> Result<(), Failure> {
        Ok(self.file.read_exact_at(buffer, request.offset)?)
    }

    pub fn write(&self, request: &Request, payload: &[u8]) -> Result<(), Failure> {
        if request.has(command_flag::FUA) {
            self.file.write_all_at_fua(payload, request.offset)?;
        } else {
            self.file.write_all_at(payload, request.offset)?;
        }
        Ok(())
    }

    pub fn flush(&self) -> Result<(), Failure> {
        Ok(self.file.flush()?)
    }

    pub fn trim(&self, request: &Request) -> Result<(), Failure> {
        match self.file.discard(request.offset, request.len.into()) {
            // It was advice.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            result => result?,
        }
        self.flush_if(request)
    }

    pub fn write_zeroes(&self, request: &Request) -> Result<(), Failure> {
        let (offset, len) = (request.offset, request.len.into());
        let hole = match request.has(command_flag::NO_HOLE) {
            true => Err(io::ErrorKind::Unsupported.into()),
            false => self.file.discard(offset, len),
        };
        match hole {
            // Whether there is a quick way is known only when it has been gone, and what is asked for isn't to try others.
            Err(error) if error.kind() == io::ErrorKind::Unsupported && request.has(command_flag::FAST_ZERO) => {
                return Err(Failure::new(Errno::NotSupported, "no quick way to write zeroes there"));
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.file.write_zeroes(offset, len)?,
            result => result?,
        }
        self.flush_if(request)
    }

    /// Where there are holes.
    pub fn extents(&self, request: &Request) -> Vec<Extent> {
        let Request { offset, len, .. } = *request;
        let only_one = request.has(command_flag::REQUEST_ONE);
        extents::extents(self.file.get_ref(), offset, len, self.block_sizes.minimum, only_one)
    }

    fn flush_if(&self, request: &Request) -> Result<(), Failure> {
        if request.has(command_flag::FUA) { self.flush() } else { Ok(()) }
    }
}

/// The export that a client names: an empty name means the first one, unless one has that name.
pub fn find<'a>(exports: &'a [Arc<Export>], name: &[u8]) -> Option<&'a Arc<Export>> {
    let named = exports.iter().find(|export| export.name.as_bytes() == name);
    named.or_else(|| exports.first().filter(|_| name.is_empty()))
}
