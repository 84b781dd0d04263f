//! What std has for `Read` and `Write`: an echo of one line of code.

use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;

use aioco::aio::Local;

use crate::Error;
use crate::meeting::{Plan, Stream, Tally, meet};

/// A client sends so many lines before it reads the answers.
const AHEAD: usize = 16;

/// The bytes of a line, with its end.
const LINE: usize = 64;

pub fn run(context: &Local, plan: Plan) -> Result<Tally, Error> {
    meet(context, plan, serve, move |stream| call(&stream, plan.data))
}

fn serve(stream: Stream) -> Result<(), Error> {
    io::copy(&mut &stream, &mut &stream)?;
    Ok(())
}

fn call(stream: &Stream, data: usize) -> Result<(), Error> {
    let mut answers = BufReader::new(stream).lines();
    let count = data.div_ceil(LINE);
    for first in (0..count).step_by(AHEAD) {
        let numbers = first..count.min(first + AHEAD);
        let mut lines = String::new();
        for number in numbers.clone() {
            lines.extend([line(number), "\n".to_owned()]);
        }
        (&*stream).write_all(lines.as_bytes())?;
        for number in numbers {
            match answers.next().transpose()? {
                Some(answer) if answer == line(number) => {}
                other => return Err(format!("{other:?} instead of line {number}").into()),
            }
        }
    }
    stream.get_ref().shutdown(Shutdown::Write)?;
    match answers.next() {
        None => Ok(()),
        Some(more) => Err(format!("{more:?} after the last line").into()),
    }
}

fn line(number: usize) -> String {
    format!("{number:>width$}", width = LINE - 1)
}
