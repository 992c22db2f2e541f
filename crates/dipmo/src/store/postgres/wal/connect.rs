//! A replication connection: socket, encryption, password, and the command that starts the stream.
//!
//! The same settings as the pool's, taken from its [`Config`]; tokio-postgres itself cannot ask for replication.

use std::path::Path;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::{self, Host, SslMode, SslNegotiation};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect as _};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::frame::{Reader, malformed};
use crate::error::{Error, ErrorKind, Result};
use crate::store::postgres::{Db, kind_of};

const CONNECT_MAX: Duration = Duration::from_secs(15);
const PORT_DEFAULT: u16 = 5432;
/// Values that the server sends as text must look the same whatever the role's settings are.
const SESSION: &str = "-c datestyle=ISO -c timezone=UTC -c bytea_output=hex";

pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + Sync {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + Sync> Socket for S {}

/// What a connection is made of: its socket, and what was read of it and not yet used.
pub(super) struct Connection {
    pub(super) socket: Box<dyn Socket>,
    pub(super) incoming: BytesMut,
}

/// Connects and starts streaming; `command` is a START_REPLICATION.
pub(super) async fn start(db: &Db, command: &str) -> Result<Connection> {
    let limit = db.config().get_connect_timeout().copied().unwrap_or(CONNECT_MAX);
    let started = tokio::time::timeout(limit, async {
        let mut connection = Connection { socket: open_socket(db).await?, incoming: BytesMut::new() };
        connection.log_in(db.config()).await?;
        connection.command(command).await?;
        Ok(connection)
    });
    started.await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unavailable, format!("replication connection: no answer within {limit:?}")))
    })
}

impl Connection {
    async fn log_in(&mut self, config: &Config) -> Result<()> {
        let user = match config.get_user() {
            Some(user) => user.to_owned(),
            None => std::env::var("USER").map_err(|_| Error::invalid("the database URL names no user"))?,
        };
        let options = format!("{} {SESSION}", config.get_options().unwrap_or_default());
        let mut parameters = vec![
            ("user", user.as_str()),
            ("replication", "database"),
            ("client_encoding", "UTF8"),
            ("options", options.as_str()),
        ];
        parameters.extend(config.get_dbname().map(|name| ("database", name)));
        parameters.extend(config.get_application_name().map(|name| ("application_name", name)));
        self.send(|out| frontend::startup_message(parameters, out)).await?;
        let mut scram = None;
        loop {
            let (tag, body) = self.receive().await?;
            match tag {
                b'R' => self.authenticate(config, &user, &body, &mut scram).await?,
                b'Z' => return Ok(()),
                b'E' => return Err(server_error("replication connection", &body)),
                _ => {}
            }
        }
    }

    async fn authenticate(
        &mut self,
        config: &Config,
        user: &str,
        body: &[u8],
        scram: &mut Option<ScramSha256>,
    ) -> Result<()> {
        let password = || {
            config
                .get_password()
                .ok_or_else(|| Error::invalid("the server asks for a password: the database URL has none"))
        };
        let refused =
            |error: std::io::Error| Error::invalid("replication connection: authentication failed").source(error);
        let mut reader = Reader::new(body);
        match reader.i32()? {
            0 => Ok(()),
            3 => {
                let password = password()?;
                self.send(|out| frontend::password_message(password, out)).await
            }
            5 => {
                let salt = reader.take(4)?.try_into().map_err(|_| malformed("a salt".to_owned()))?;
                let hash = md5_hash(user.as_bytes(), password()?, salt);
                self.send(|out| frontend::password_message(hash.as_bytes(), out)).await
            }
            10 => {
                // The certificate's hash is not to be had from this TLS connector.
                if config.get_channel_binding() == config::ChannelBinding::Require {
                    return Err(Error::invalid("channel_binding=require is not supported on replication connections"));
                }
                let state = scram.insert(ScramSha256::new(password()?, ChannelBinding::unsupported()));
                self.send(|out| frontend::sasl_initial_response(SCRAM_SHA_256, state.message(), out)).await
            }
            11 => {
                let state = scram.as_mut().ok_or_else(|| malformed("SCRAM was not begun".to_owned()))?;
                state.update(&body[4..]).map_err(refused)?;
                self.send(|out| frontend::sasl_response(state.message(), out)).await
            }
            12 => {
                let state = scram.as_mut().ok_or_else(|| malformed("SCRAM was not begun".to_owned()))?;
                state.finish(&body[4..]).map_err(refused)
            }
            other => Err(Error::invalid(format!(
                "the server asks for authentication method {other}, which is not supported"
            ))),
        }
    }

    async fn command(&mut self, command: &str) -> Result<()> {
        self.send(|out| frontend::query(command, out)).await?;
        loop {
            let (tag, body) = self.receive().await?;
            match tag {
                // CopyBothResponse
                b'W' => return Ok(()),
                b'E' => return Err(server_error("starting replication", &body)),
                _ => {}
            }
        }
    }

    async fn send(&mut self, message: impl FnOnce(&mut BytesMut) -> std::io::Result<()>) -> Result<()> {
        let mut out = BytesMut::new();
        message(&mut out).map_err(|error| Error::invalid("a message to the server cannot be written").source(error))?;
        self.socket.write_all(&out).await.map_err(broken)?;
        self.socket.flush().await.map_err(broken)
    }

    async fn receive(&mut self) -> Result<(u8, Bytes)> {
        loop {
            if let Some(message) = take_message(&mut self.incoming)? {
                return Ok(message);
            }
            if self.socket.read_buf(&mut self.incoming).await.map_err(broken)? == 0 {
                return Err(ended());
            }
        }
    }
}

/// The next message if all of it is there: its tag and its body.
pub(super) fn take_message(incoming: &mut BytesMut) -> Result<Option<(u8, Bytes)>> {
    let Some(len) = message_len(incoming)?.filter(|len| *len <= incoming.len()) else { return Ok(None) };
    let tag = incoming[0];
    let mut message = incoming.split_to(len).freeze();
    message.advance(5);
    Ok(Some((tag, message)))
}

/// How long the next message is, tag included, once its head is there.
pub(super) fn message_len(incoming: &[u8]) -> Result<Option<usize>> {
    let Some(head) = incoming.get(1..5) else { return Ok(None) };
    match Reader::new(head).len()? {
        len if len < 4 => Err(malformed(format!("a message of {len} bytes"))),
        len => Ok(Some(len + 1)),
    }
}

pub(super) fn broken(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "replication connection").source(error)
}

pub(super) fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "the server ended the replication connection")
}

/// The server's message and code, without its detail: details quote row values.
pub(super) fn server_error(doing: &str, body: &[u8]) -> Error {
    let (mut code, mut message) = ("", "no reason given");
    let mut reader = Reader::new(body);
    while let Ok(field @ 1..) = reader.u8() {
        let Ok(text) = reader.text() else { break };
        match field {
            b'C' => code = text,
            b'M' => message = text,
            _ => {}
        }
    }
    let kind = match code {
        // A slot or a publication that is not there.
        "42704" => ErrorKind::NotFound,
        code => kind_of(Some(code)),
    };
    Error::new(kind, format!("{doing}: {message} ({code})"))
}

/// The first host that answers, as libpq does it.
async fn open_socket(db: &Db) -> Result<Box<dyn Socket>> {
    let config = db.config();
    let mut failure = Error::invalid("the database URL names no host");
    for (index, host) in config.get_hosts().iter().enumerate() {
        let ports = config.get_ports();
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(PORT_DEFAULT);
        let connected = match host {
            Host::Unix(dir) => open_unix(dir, port).await,
            Host::Tcp(name) => open_tcp(config, db.tls(), index, name, port).await,
        };
        match connected {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn open_unix(dir: &Path, port: u16) -> Result<Box<dyn Socket>> {
    let path = dir.join(format!(".s.PGSQL.{port}"));
    Ok(Box::new(UnixStream::connect(path).await.map_err(broken)?))
}

async fn open_tcp(
    config: &Config,
    mut tls: MakeRustlsConnect,
    index: usize,
    name: &str,
    port: u16,
) -> Result<Box<dyn Socket>> {
    let connected = match config.get_hostaddrs().get(index) {
        Some(address) => TcpStream::connect((*address, port)).await,
        None => TcpStream::connect((name, port)).await,
    };
    let mut socket = connected.map_err(broken)?;
    // Confirmations are small and must not wait for each other.
    socket.set_nodelay(true).map_err(broken)?;
    if config.get_ssl_mode() == SslMode::Disable {
        return Ok(Box::new(socket));
    }
    if config.get_ssl_negotiation() == SslNegotiation::Postgres {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        socket.write_all(&request).await.map_err(broken)?;
        if socket.read_u8().await.map_err(broken)? != b'S' {
            return Err(Error::invalid("the server does not offer TLS, and the database URL requires it"));
        }
    }
    let connector = match MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, name) {
        Ok(connector) => connector,
        Err(never) => match never {},
    };
    let encrypted = connector
        .connect(socket)
        .await
        .map_err(|error| Error::new(ErrorKind::Unavailable, "replication connection: TLS").source(error))?;
    Ok(Box::new(encrypted))
}
