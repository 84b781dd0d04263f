//! `tungstenite`, over whatever reads and writes.

use std::io::{Read, Write};

use aioco::aio::Local;
use tungstenite::Message;

use crate::Error;
use crate::meeting::{Plan, Tally, meet};

/// The bytes of most messages.
const MESSAGE: usize = 16 << 10;

pub fn run(context: &Local, plan: Plan) -> Result<Tally, Error> {
    meet(context, plan, serve, move |stream| call(stream, plan.data))
}

/// Echoes messages until the client closes.
pub fn serve(stream: impl Read + Write) -> Result<(), Error> {
    // The handshake parks where the client lets it wait, some calls down in the library.
    let mut socket = tungstenite::accept(stream).map_err(|error| error.to_string())?;
    loop {
        match socket.read() {
            Ok(message @ (Message::Text(_) | Message::Binary(_))) => socket.send(message)?,
            // The library answers pings, and a client that takes its leave.
            Ok(_) => {}
            Err(tungstenite::Error::ConnectionClosed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends so many bytes, and looks whether they come back.
pub fn call(stream: impl Read + Write, data: usize) -> Result<(), Error> {
    let (mut socket, _) = tungstenite::client("ws://localhost/echo", stream).map_err(|error| error.to_string())?;
    for (number, start) in (0..data).step_by(MESSAGE).enumerate() {
        let len = MESSAGE.min(data - start);
        let message = match number % 2 {
            0 => Message::binary(vec![number as u8; len]),
            _ => Message::text(char::from(b'a' + (number % 26) as u8).to_string().repeat(len)),
        };
        socket.send(message.clone())?;
        if socket.read()? != message {
            return Err(format!("message {number} came back as another one").into());
        }
    }
    socket.close(None)?;
    loop {
        match socket.read() {
            Ok(_) => {}
            Err(tungstenite::Error::ConnectionClosed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
