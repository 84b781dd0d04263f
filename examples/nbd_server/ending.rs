//! How a connection ends.

use std::fmt;
use std::io;

/// Why a connection ended.
#[derive(Debug)]
pub enum Ending {
    /// The client took its leave, or the server stops.
    Orderly,
    /// The connection broke, or nothing came for too long.
    Broken(io::Error),
    /// The client said what mustn't be said.
    Offence(String),
}

impl Ending {
    pub fn offence(text: impl Into<String>) -> Self {
        Self::Offence(text.into())
    }
}

impl From<io::Error> for Ending {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Orderly => f.write_str("done"),
            Self::Broken(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("cut in the middle of a message")
            }
            Self::Broken(error) if error.kind() == io::ErrorKind::TimedOut => {
                f.write_str("cut, because the client kept us waiting")
            }
            Self::Broken(error) => write!(f, "broken: {error}"),
            Self::Offence(text) => write!(f, "cut, because {text}"),
        }
    }
}
