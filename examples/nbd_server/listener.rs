//! Where clients come in.

use std::fmt::Write;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::{Duration, Instant};

use aioco::aio;
use aioco::fd::Parked;
use socket2::Socket;

use crate::Error;
use crate::log;
use crate::worker::{Arrival, Inbox, Place};

/// Between attempts to accept when there are no descriptors left, or to listen where somebody else does.
const PAUSE: Duration = Duration::from_millis(100);

/// A server that was killed listens until the kernel is done with its ring.
const HANDOVER: Duration = Duration::from_millis(500);

pub enum Listener {
    Tcp(Parked<TcpListener>),
    Unix(Parked<UnixListener>, PathBuf),
}

impl Listener {
    pub fn tcp(address: SocketAddr) -> Result<Self, Error> {
        Ok(Self::Tcp(
            Parked::<TcpListener>::bind(address).map_err(|error| format!("cannot listen at {address}: {error}"))?,
        ))
    }

    pub fn unix(path: &Path) -> Result<Self, Error> {
        let deadline = Instant::now() + HANDOVER;
        loop {
            if is_abandoned(path) {
                fs::remove_file(path).map_err(|error| format!("cannot remove the old {}: {error}", path.display()))?;
            }
            match Parked::<UnixListener>::bind(path) {
                Ok(listener) => return Ok(Self::Unix(listener, path.to_owned())),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                    thread::sleep(PAUSE);
                }
                Err(error) => return Err(format!("cannot listen at {}: {error}", path.display()).into()),
            }
        }
    }

    /// What clients call it.
    pub fn uri(&self) -> io::Result<String> {
        Ok(match self {
            Self::Tcp(listener) => format!("nbd://{}", listener.get_ref().local_addr()?),
            Self::Unix(_, path) => format!("nbd+unix:///?socket={}", percent_encoded(path)),
        })
    }

    /// Accepts clients, for ever, and hands them to the workers in turn.
    pub fn accept_all(&self, workers: &[Arc<Inbox>], taken: &Arc<AtomicUsize>, limit: usize) {
        let mut number = 0_u64;
        for inbox in workers.iter().cycle() {
            loop {
                number += 1;
                match self.accept(number) {
                    Ok((name, socket)) => match Place::take(taken, limit) {
                        Some(place) => {
                            inbox.push(Arrival { name, socket, place });
                            break;
                        }
                        None => log::warn(format_args!("{name}: turned away, {limit} are connected")),
                    },
                    Err(error) => {
                        log::warn(format_args!("a client can't be accepted: {error}"));
                        if error.kind() != io::ErrorKind::ConnectionAborted {
                            aio::sleep(PAUSE);
                        }
                    }
                }
            }
        }
    }

    fn accept(&self, number: u64) -> io::Result<(String, Parked<Socket>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.read_with(TcpListener::accept)?;
                // Replies go out together already, and what is sent shouldn't wait.
                stream.set_nodelay(true)?;
                Ok((format!("{address}"), Parked::new(stream.into())?))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.read_with(UnixListener::accept)?;
                Ok((format!("unix client {number}"), Parked::new(Socket::from(OwnedFd::from(stream)))?))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Somebody else may have done it.
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether there is a socket, at which nobody listens any more.
fn is_abandoned(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn percent_encoded(path: &Path) -> String {
    let mut encoded = String::new();
    for &byte in path.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            write!(encoded, "%{byte:02X}").expect("a string takes anything");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_uris() {
        assert_eq!(percent_encoded(Path::new("/tmp/a b.sock")), "/tmp/a%20b.sock");
        assert_eq!(percent_encoded(Path::new("/ä?&")), "/%C3%A4%3F%26");
    }
}
