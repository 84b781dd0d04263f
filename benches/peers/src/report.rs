//! Figures as text for people and as tab-separated values for programs.

use std::fmt::{self, Display};
use std::fs;
use std::io::{self, Write};

use clap::ValueEnum;

use crate::groups::{Case, Group};
use crate::measure::Summary;

/// A figure of one runtime.
#[derive(Clone, Debug)]
pub struct Row {
    pub runtime: &'static str,
    /// The case's name, with a suffix if it yields several figures.
    pub case: String,
    pub summary: Summary,
    pub unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Nanoseconds,
    Microseconds,
    Bytes,
    Maps,
}

impl Unit {
    pub fn label(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Microseconds => "us",
            Self::Bytes => "bytes",
            Self::Maps => "maps",
        }
    }

    /// Writes a figure with as many digits as it deserves.
    pub fn format(self, figure: f64) -> String {
        let decimals = match self {
            Self::Nanoseconds | Self::Microseconds if figure < 10.0 => 2,
            Self::Nanoseconds | Self::Microseconds if figure < 1000.0 => 1,
            _ => 0,
        };
        format!("{figure:.decimals$}")
    }
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for each figure, with the ratio to the baseline
    Text,
    /// runtime, case, minimum, median and unit, separated by tabs
    Tsv,
}

impl Format {
    /// Writes what comes before all rows.
    pub fn write_header(self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Text => writeln!(out, "{}", machine()),
            Self::Tsv => Ok(()),
        }
    }

    /// Writes a case's rows, which are ordered by figure.
    pub fn write_rows(self, out: &mut dyn Write, group: &Group, case: &Case, rows: &[Row]) -> io::Result<()> {
        match self {
            Self::Text => rows
                .chunk_by(|one, next| one.case == next.case)
                .try_for_each(|table| write_table(out, group, case, table)),
            Self::Tsv => rows.iter().try_for_each(|row| {
                let Summary { min, median } = row.summary;
                let (runtime, case, unit) = (row.runtime, &row.case, row.unit.label());
                writeln!(out, "{runtime}\t{case}\t{min:.2}\t{median:.2}\t{unit}")
            }),
        }
    }
}

fn write_table(out: &mut dyn Write, group: &Group, case: &Case, table: &[Row]) -> io::Result<()> {
    let baseline = table.iter().find(|row| row.runtime == group.baseline);
    writeln!(out, "\n{}: {}", table[0].case, case.about)?;
    let unit = table[0].unit.label();
    write!(out, "  {:<12}{:>12}{:>12}", "", format!("min {unit}"), "median")?;
    if baseline.is_some() {
        write!(out, "{:>16}", format!("x {}", group.baseline))?;
    }
    writeln!(out)?;
    for row in table {
        let Summary { min, median } = row.summary;
        let (runtime, unit) = (row.runtime, row.unit);
        write!(out, "  {runtime:<12}{:>12}{:>12}", unit.format(min), unit.format(median))?;
        if let Some(baseline) = baseline {
            write!(out, "{:>16.2}", min / baseline.summary.min)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Says something worth knowing that is not a figure.
pub fn note(message: fmt::Arguments<'_>) {
    eprintln!("note: {message}");
}

/// The processor, the kernel and the compiler.
pub fn machine() -> impl Display {
    let cpu = fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|info| {
            let line = info.lines().find_map(|line| line.strip_prefix("model name"))?;
            Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
        })
        .unwrap_or_else(|| format!("unknown {} processor", std::env::consts::ARCH));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| String::from("of unknown version"), |release| release.trim().to_owned());
    format!("{cpu} | Linux {kernel} | {}", env!("PEERS_RUSTC"))
}
