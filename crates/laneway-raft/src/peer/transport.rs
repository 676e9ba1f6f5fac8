//! The seam to the network: byte streams between nodes.

use std::fmt;
use std::io;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// Unacknowledged data or silence for so long ends a connection whose other host is gone without a word.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Two directions of one connection.
pub struct PeerStream {
    /// What the other side sends.
    pub input: Box<dyn AsyncRead + Send + Unpin>,
    /// What goes to it.
    pub output: Box<dyn AsyncWrite + Send + Unpin>,
}

impl fmt::Debug for PeerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerStream").finish_non_exhaustive()
    }
}

/// Makes connections to other nodes and takes theirs.
pub trait PeerTransport: fmt::Debug + Send + Sync + 'static {
    /// Connects to `host:port`. `ConnectionRefused` says that no process listens there.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<PeerStream>>;

    /// Listens on `host:port`.
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn PeerListener>>>;
}

/// Takes connections.
pub trait PeerListener: fmt::Debug + Send + Sync + 'static {
    /// The next one, with the address it came from, for the log. Cancel safe.
    fn accept(&self) -> BoxFuture<'_, io::Result<(PeerStream, String)>>;

    /// Where it listens.
    fn address(&self) -> String;
}

/// TCP, as the product uses it.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpTransport;

impl PeerTransport for TcpTransport {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<PeerStream>> {
        Box::pin(async move { halves(TcpStream::connect(address).await?) })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn PeerListener>>> {
        Box::pin(async move {
            let listener = TcpListener::bind(address).await?;
            Ok(Box::new(listener) as Box<dyn PeerListener>)
        })
    }
}

impl PeerListener for TcpListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(PeerStream, String)>> {
        Box::pin(async move {
            let (stream, from) = Self::accept(self).await?;
            Ok((halves(stream)?, from.to_string()))
        })
    }

    fn address(&self) -> String {
        self.local_addr()
            .map_or_else(|error| format!("unknown: {error}"), |address| address.to_string())
    }
}

fn halves(stream: TcpStream) -> io::Result<PeerStream> {
    stream.set_nodelay(true)?;
    let silence_ms = u32::try_from(SILENCE_MAX.as_millis()).expect("a few seconds");
    sockopt::set_tcp_user_timeout(&stream, silence_ms)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, SILENCE_MAX / 4)?;
    sockopt::set_tcp_keepintvl(&stream, SILENCE_MAX / 4)?;
    sockopt::set_tcp_keepcnt(&stream, 3)?;
    let (input, output) = stream.into_split();
    Ok(PeerStream {
        input: Box::new(input),
        output: Box::new(output),
    })
}
