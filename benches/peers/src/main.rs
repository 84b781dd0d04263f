//! Measures aioco and its peers side by side, in one program and one run, so that all meet the same compiler, the same
//! processor and the same minute.
//!
//! `cargo run --release -p peers` runs everything; `--help` lists the cases. Figures are the minimum and the median of
//! many short, interleaved repetitions. Compare minimum with minimum, and ratios rather than nanoseconds.
//!
//! [`body`] has what the coroutines do, [`runtime`] a file for each runtime, [`loops`] what is timed and [`parked`]
//! what is weighed; [`event_loop`] has all of that for event loops, [`locks`] for locks, and [`block`] for block I/O.
//! [`groups`] has the tables that put them together, which [`run`] runs with the means of [`measure`]. [`report`] and
//! [`plot`] show the result.

mod block;
mod body;
mod event_loop;
mod groups;
mod limit;
mod locks;
mod loops;
mod measure;
mod parked;
mod plot;
mod report;
mod run;
mod runtime;

use std::fs;
use std::io::{self, Write};
use std::iter;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::groups::{Case, GROUPS, Group};
use crate::report::Format;

#[derive(Parser)]
#[command(about = "Measures aioco and its peers side by side")]
struct Arguments {
    /// Run only this group; may be given several times. Without it all run, each for a minute or less
    #[arg(long = "group", value_name = "NAME", value_parser = group_names())]
    groups: Vec<String>,

    /// Run only this case; may be given several times
    #[arg(long = "case", value_name = "NAME", value_parser = case_names())]
    cases: Vec<String>,

    /// How to print the figures
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Also draw the minima as a bar chart
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    /// How many repetitions of each loop count
    #[arg(long, value_name = "NUMBER", default_value = "21")]
    rounds: NonZeroUsize,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Park coroutines for the process that measures
    #[command(name = run::PARK_COMMAND, hide = true)]
    Park { case: String, runtime: String },
}

fn group_names() -> PossibleValuesParser {
    let value = |group: &&Group| PossibleValue::new(group.name).help(group.about);
    PossibleValuesParser::new(GROUPS.iter().map(value))
}

/// The names of the cases and, not listed, of the single figures of cases that yield several.
fn case_names() -> PossibleValuesParser {
    let values = all_cases().flat_map(|case| {
        let figures = case.row_names().into_iter().filter(|name| name != case.name);
        iter::once(PossibleValue::new(case.name).help(case.about))
            .chain(figures.map(|name| PossibleValue::new(name).hide(true)))
    });
    PossibleValuesParser::new(values)
}

fn all_cases() -> impl Iterator<Item = &'static Case> {
    GROUPS.iter().flat_map(|group| group.cases)
}

impl Arguments {
    fn wants_group(&self, group: &Group) -> bool {
        self.groups.is_empty() || self.groups.iter().any(|name| name == group.name)
    }

    fn wants_figure(&self, case: &Case, figure: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|name| name == case.name || name == figure)
    }

    /// The cases asked for, each with its group.
    fn selection(&self) -> Vec<(&'static Group, &'static Case)> {
        GROUPS
            .iter()
            .filter(|group| self.wants_group(group))
            .flat_map(|&group| group.cases.iter().map(move |case| (group, case)))
            .filter(|(_, case)| {
                let mut figures = case.row_names().into_iter();
                figures.any(|figure| self.wants_figure(case, &figure))
            })
            .collect()
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Command::Park { case, runtime }) = &arguments.command {
        run::park_for_parent(case, runtime);
    }
    let selection = arguments.selection();
    if selection.is_empty() {
        let message = "none of the groups asked for has a case of that name\n";
        Arguments::command().error(ErrorKind::ValueValidation, message).exit();
    }
    match measure_and_report(&arguments, &selection) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure_and_report(arguments: &Arguments, selection: &[(&Group, &Case)]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    arguments.format.write_header(&mut out)?;
    let mut all_rows = Vec::new();
    for (group, case) in selection {
        let mut rows = run::run(group, case, arguments.rounds.get());
        rows.retain(|row| arguments.wants_figure(case, &row.case));
        arguments.format.write_rows(&mut out, group, case, &rows)?;
        out.flush()?;
        all_rows.extend(rows);
    }
    if let Some(path) = &arguments.plot {
        fs::write(path, plot::draw(&all_rows))?;
    }
    Ok(())
}
