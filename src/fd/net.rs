//! Sockets: what waits besides reading and writing.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{self, UnixDatagram, UnixListener, UnixStream};
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

use super::Parked;

impl Parked<TcpListener> {
    /// Listens at an address; see [`TcpListener::bind`].
    ///
    /// ```
    /// use aioco::{AioContext, fd::Parked};
    /// use std::io::{self, Read, Write};
    /// use std::net::{Shutdown, TcpListener, TcpStream};
    ///
    /// let context = AioContext::new()?;
    /// let listener = Parked::<TcpListener>::bind("127.0.0.1:0".parse().unwrap())?;
    /// let address = listener.get_ref().local_addr()?;
    /// let server = context.spawn(move || -> io::Result<u64> {
    ///     let (stream, _) = listener.accept()?;
    ///     io::copy(&mut &stream, &mut &stream) // an echo, until the client has said all
    /// })?;
    /// context.block_on(|| -> io::Result<()> {
    ///     let mut stream = Parked::<TcpStream>::connect(address)?;
    ///     stream.write_all(b"hello")?;
    ///     stream.get_ref().shutdown(Shutdown::Write)?;
    ///     let mut answer = String::new();
    ///     stream.read_to_string(&mut answer)?;
    ///     assert_eq!(answer, "hello");
    ///     Ok(())
    /// })?;
    /// assert_eq!(server.join().unwrap()?, 5);
    /// # Ok::<(), io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::new(TcpListener::bind(address)?)
    }

    /// Waits for a connection.
    ///
    /// # Errors
    ///
    /// What the kernel says about this connection ([`ConnectionAborted`](io::ErrorKind::ConnectionAborted)), or that there
    /// are too many open files. Others may be accepted after that.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn accept(&self) -> io::Result<(Parked<TcpStream>, SocketAddr)> {
        let (stream, address) = self.read_with(TcpListener::accept)?;
        Ok((Parked::new(stream)?.bare(), address))
    }
}

impl Parked<TcpStream> {
    /// Connects to an address. Names are looked up elsewhere: that blocks.
    ///
    /// ```
    /// use aioco::{AioContext, fd::Parked};
    /// use std::net::{TcpListener, TcpStream};
    ///
    /// let listener = Parked::new(TcpListener::bind("127.0.0.1:0")?)?;
    /// let address = listener.get_ref().local_addr()?;
    /// let context = AioContext::new()?;
    /// let accepting = context.spawn(move || listener.accept())?;
    /// let stream = context.block_on(|| Parked::<TcpStream>::connect(address))?;
    /// let (_, peer) = accepting.join().unwrap()?;
    /// assert_eq!(stream.get_ref().local_addr()?, peer);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What the kernel says.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        connect(Domain::for_address(address), Type::STREAM, &address.into()).map(Self::bare)
    }
}

impl Parked<UnixListener> {
    /// Listens at a path, which mustn't exist; see [`UnixListener::bind`].
    ///
    /// ```
    /// use aioco::{AioContext, fd::Parked};
    /// use std::io::{Read, Write};
    /// use std::os::unix::net::{UnixListener, UnixStream};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("socket");
    /// let context = AioContext::new()?;
    /// let listener = Parked::<UnixListener>::bind(&path)?;
    /// let server = context.spawn(move || listener.accept()?.0.write_all(b"hello"))?;
    /// let mut answer = String::new();
    /// context.block_on(|| Parked::<UnixStream>::connect(&path)?.read_to_string(&mut answer))?;
    /// assert_eq!(answer, "hello");
    /// server.join().unwrap()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::new(UnixListener::bind(path)?)
    }

    /// Waits for a connection.
    ///
    /// # Errors
    ///
    /// As [`Parked::<TcpListener>::accept`](Parked#method.accept).
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn accept(&self) -> io::Result<(Parked<UnixStream>, net::SocketAddr)> {
        let (stream, address) = self.read_with(UnixListener::accept)?;
        Ok((Parked::new(stream)?, address))
    }
}

impl Parked<UnixStream> {
    /// Connects to a path.
    ///
    /// # Errors
    ///
    /// What the kernel says; [`WouldBlock`](io::ErrorKind::WouldBlock) if more wait to be accepted there than may.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        connect(Domain::UNIX, Type::STREAM, &SockAddr::unix(path)?)
    }
}

impl Parked<UdpSocket> {
    /// Waits for a datagram; see [`UdpSocket::recv_from`].
    ///
    /// ```
    /// use aioco::{AioContext, fd::Parked};
    /// use std::net::UdpSocket;
    ///
    /// let context = AioContext::new()?;
    /// let ours = Parked::new(UdpSocket::bind("127.0.0.1:0")?)?;
    /// let theirs = Parked::new(UdpSocket::bind("127.0.0.1:0")?)?;
    /// let address = theirs.get_ref().local_addr()?;
    /// let receiving = context.spawn(move || {
    ///     let mut buffer = [0; 100];
    ///     theirs.recv_from(&mut buffer).map(|(len, from)| (buffer[..len].to_vec(), from))
    /// })?;
    /// context.block_on(|| ours.send_to(b"hello", address))?;
    /// assert_eq!(receiving.join().unwrap()?, (b"hello".to_vec(), ours.get_ref().local_addr()?));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What the kernel says.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.read_with(|socket| socket.recv_from(buffer))
    }

    /// Sends a datagram, when there is room; see [`UdpSocket::send_to`].
    ///
    /// # Errors
    ///
    /// What the kernel says.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn send_to(&self, buffer: &[u8], address: SocketAddr) -> io::Result<usize> {
        self.write_with(|socket| socket.send_to(buffer, address))
    }
}

impl Parked<UnixDatagram> {
    /// Waits for a datagram; see [`UnixDatagram::recv_from`].
    ///
    /// ```
    /// use aioco::{AioContext, fd::Parked};
    /// use std::os::unix::net::UnixDatagram;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("socket");
    /// let context = AioContext::new()?;
    /// let theirs = Parked::new(UnixDatagram::bind(&path)?)?;
    /// let receiving = context.spawn(move || theirs.recv_from(&mut [0; 100]).map(|(len, _)| len))?;
    /// let ours = Parked::new(UnixDatagram::unbound()?)?;
    /// context.block_on(|| ours.send_to(b"hello", &path))?;
    /// assert_eq!(receiving.join().unwrap()?, 5);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What the kernel says.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, net::SocketAddr)> {
        self.read_with(|socket| socket.recv_from(buffer))
    }

    /// Sends a datagram to a path, when there is room; see [`UnixDatagram::send_to`].
    ///
    /// # Errors
    ///
    /// What the kernel says.
    ///
    /// # Panics
    ///
    /// As [`park`](crate::park::park()).
    pub fn send_to(&self, buffer: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        self.write_with(|socket| socket.send_to(buffer, path.as_ref()))
    }
}

/// Makes a socket, and connects it.
fn connect<T: AsFd + From<OwnedFd>>(domain: Domain, kind: Type, address: &SockAddr) -> io::Result<Parked<T>> {
    let socket = Socket::new(domain, kind, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(address) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            // Writable when it is decided; spurious wake-ups are told apart by the peer's address.
            loop {
                super::wait_writable(&socket)?;
                if let Some(error) = socket.take_error()? {
                    return Err(error);
                }
                match socket.peer_addr() {
                    Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {}
                    connected => break connected.map(drop)?,
                }
            }
        }
        Err(error) => return Err(error),
    }
    let mut parked = Parked::new(T::from(OwnedFd::from(socket)))?;
    parked.give_back_blocking();
    Ok(parked)
}
