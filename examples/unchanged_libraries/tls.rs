//! `rustls`, with a certificate that is made on the spot.

use std::io::{Read, Write};
use std::sync::Arc;

use aioco::aio::Local;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::meeting::{Plan, Stream, Tally, meet};
use crate::{Error, websocket};

pub fn run(context: &Local, plan: Plan) -> Result<Tally, Error> {
    let Acquaintance { server, client } = Acquaintance::make()?;
    meet(
        context,
        plan,
        move |stream| serve(StreamOwned::new(ServerConnection::new(server.clone())?, stream)),
        move |stream| call(StreamOwned::new(ClientConnection::new(client.clone(), localhost())?, stream), plan.data),
    )
}

/// One library on the other.
pub fn run_websocket(context: &Local, plan: Plan) -> Result<Tally, Error> {
    let Acquaintance { server, client } = Acquaintance::make()?;
    meet(
        context,
        plan,
        move |stream| {
            let mut stream = StreamOwned::new(ServerConnection::new(server.clone())?, stream);
            websocket::serve(&mut stream)?;
            // The client waits for the end of the stream, and wants it to be told, not cut.
            stream.conn.send_close_notify();
            Ok(stream.flush()?)
        },
        move |stream| {
            websocket::call(StreamOwned::new(ClientConnection::new(client.clone(), localhost())?, stream), plan.data)
        },
    )
}

/// Takes all that the client has to say, and says it back. The handshake is part of the first read.
fn serve(mut stream: StreamOwned<ServerConnection, Stream>) -> Result<(), Error> {
    let mut data = Vec::new();
    stream.read_to_end(&mut data)?;
    stream.write_all(&data)?;
    stream.conn.send_close_notify();
    Ok(stream.flush()?)
}

fn call(mut stream: StreamOwned<ClientConnection, Stream>, len: usize) -> Result<(), Error> {
    let data: Vec<u8> = (0..len).map(|place| (place % 251) as u8).collect();
    stream.write_all(&data)?;
    // The end of what we have to say, and not of what we listen to.
    stream.conn.send_close_notify();
    stream.flush()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if answer == data { Ok(()) } else { Err(format!("{} bytes came back as others", data.len()).into()) }
}

/// A server, and a client that trusts it.
struct Acquaintance {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Acquaintance {
    fn make() -> Result<Self, Error> {
        let ours = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let certificate = ours.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(ours.signing_key.serialize_der().into());
        let mut trusted = RootCertStore::empty();
        trusted.add(certificate.clone())?;
        let server = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key)?;
        let client = ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
        Ok(Self { server: Arc::new(server), client: Arc::new(client) })
    }
}

fn localhost() -> ServerName<'static> {
    ServerName::try_from("localhost").expect("it is a name")
}
