//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, value_parser};

/// Runs a workload on a chain of block drivers, with coroutines and around them, and prints what that costs.
#[derive(Debug, Parser)]
#[command(name = "block_layer")]
pub struct Options {
    /// Raw image file or block device; a temporary image if left out
    pub file: Option<PathBuf>,

    /// A filter above the image; several are named from top to bottom
    ///
    /// throttle=N lets N requests a second through. checksum knows a sum of each block; with checksum=FILE, it also
    /// knows them the next time.
    #[arg(long = "filter", value_name = "throttle=N|checksum[=FILE]")]
    pub filters: Vec<Filter>,

    /// Requests kept in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u16).range(1..=4096))]
    pub depth: u16,

    /// Requests of 4096 bytes in each round, at random offsets
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = value_parser!(u64).range(1..))]
    pub requests: u64,

    /// How many rounds, of which the best counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..))]
    pub rounds: u32,

    /// How many percent of the requests are writes: they OVERWRITE THE DATA IN FILE
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = value_parser!(u64).range(..=100))]
    pub writes: u64,

    /// Bypass the page cache (O_DIRECT)
    #[arg(long)]
    pub direct: bool,

    /// Size of the temporary image (16 unless given)
    #[arg(long, value_name = "MIB", conflicts_with = "file", value_parser = value_parser!(u64).range(1..=65536))]
    pub size: Option<u64>,
}

/// A filter that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    Throttle { per_second: u32 },
    Checksum { table: Option<PathBuf> },
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        match (name, value) {
            ("throttle", Some(value)) => match value.parse() {
                Ok(per_second @ 1..=1_000_000) => Ok(Self::Throttle { per_second }),
                _ => Err(format!("{value:?} isn't a number of requests per second, from 1 to 1000000")),
            },
            ("throttle", None) => Err("throttle needs a number of requests per second, as in throttle=1000".to_owned()),
            ("checksum", Some("")) => Err("checksum= needs the name of a file behind it".to_owned()),
            ("checksum", table) => Ok(Self::Checksum { table: table.map(PathBuf::from) }),
            _ => Err(format!("no filter is called {name:?}; there are throttle=N and checksum[=FILE]")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        assert_eq!("throttle=5".parse(), Ok(Filter::Throttle { per_second: 5 }));
        assert_eq!("checksum".parse(), Ok(Filter::Checksum { table: None }));
        assert_eq!("checksum=a=b".parse(), Ok(Filter::Checksum { table: Some("a=b".into()) }));
        for wrong in ["", "throttle", "throttle=", "throttle=0", "throttle=-1", "throttle=1e6", "checksum=", "zip"] {
            assert!(wrong.parse::<Filter>().is_err(), "{wrong}");
        }
    }
}
