//! A connection to a collector, plain or encrypted, that never waits: what cannot be written now is written later.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::set_tcp_user_timeout;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::TlsSettings;
use crate::Error;

/// How long it is waited for a collector that does not answer.
const CONNECT: Duration = Duration::from_secs(3);

/// Milliseconds that bytes may stay without an answer from the other side's kernel.
const USER_TIMEOUT: u32 = 30_000;

/// Bytes of an answer that are read at a time.
const ANSWER: usize = 1 << 14;

/// What a connection over TLS begins with.
#[derive(Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// Reads certificates.
    pub(super) fn new(settings: &TlsSettings, host: &str) -> Result<Self, Error> {
        let wrong = |path: &Path, why: String| Error::Tls(format!("{}: {why}", path.display()));
        let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>, Error> {
            let expected = "expected certificates in PEM";
            let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            match found {
                Ok(found) if !found.is_empty() => Ok(found),
                Ok(_) => Err(wrong(path, format!("no certificate in it; {expected}"))),
                Err(e) => Err(wrong(path, format!("{e}; {expected}"))),
            }
        };
        let mut roots = RootCertStore::empty();
        match &settings.ca {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|e| wrong(path, e.to_string()))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(Error::Tls(
                        "this machine trusts no certificates; expected a file of them to be named".into(),
                    ));
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let fail = |e: rustls::Error| Error::Tls(e.to_string());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(fail)?;
        let config = config.with_root_certificates(roots);
        let config = match &settings.identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let private = PrivateKeyDer::from_pem_file(key)
                    .map_err(|e| wrong(key, format!("{e}; expected a private key in PEM")))?;
                config
                    .with_client_auth_cert(certificates(certificate)?, private)
                    .map_err(|e| wrong(certificate, e.to_string()))?
            }
        };
        let name = settings.name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name.clone()).map_err(|_| {
            Error::Tls(format!("\"{name}\" is neither a name nor an address that a certificate can have"))
        })?;
        Ok(Self { config: Arc::new(config), name })
    }
}

/// A connection.
pub(super) struct Connection {
    stream: TcpStream,
    begun: Instant,
    tls: Option<Box<ClientConnection>>,
    /// What is to be written, from `written` on.
    pending: Vec<u8>,
    written: usize,
    /// Bytes that the kernel has taken since the connection began.
    taken: u64,
}

impl Connection {
    /// Connects to the first of these addresses that answers. Over TLS, the handshake is still to come.
    pub(super) fn open(addresses: &[SocketAddr], tls: Option<&Tls>) -> io::Result<Self> {
        let mut last = io::ErrorKind::NotFound.into();
        for address in addresses {
            match TcpStream::connect_timeout(address, CONNECT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    // One that is gone without a word is noticed while bytes are on their way to it.
                    set_tcp_user_timeout(&stream, USER_TIMEOUT)?;
                    stream.set_nonblocking(true)?;
                    let tls = tls.map(|tls| {
                        let mut session = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone())
                            .map_err(io::Error::other)?;
                        session.set_buffer_limit(None);
                        Ok::<_, io::Error>(Box::new(session))
                    });
                    let tls = tls.transpose()?;
                    return Ok(Self {
                        stream,
                        begun: Instant::now(),
                        tls,
                        pending: Vec::new(),
                        written: 0,
                        taken: 0,
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Waits until the collector has proved who it is.
    pub(super) fn shake_hands(&mut self, patience: Duration) -> io::Result<()> {
        let end = Instant::now() + patience;
        while self.is_shaking_hands() {
            self.advance()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to the TLS handshake"));
            }
            if self.is_shaking_hands() {
                self.wait(left.min(Duration::from_millis(100)));
            }
        }
        Ok(())
    }

    /// Time since it began.
    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Whether the collector has not proved yet who it is.
    pub(super) fn is_shaking_hands(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Whether everything so far is with the kernel, so that there is no use in more waiting here.
    pub(super) fn is_idle(&self) -> bool {
        self.written == self.pending.len()
            && self.tls.as_ref().is_none_or(|tls| !tls.wants_write() && !tls.is_handshaking())
    }

    /// Takes a message to be written, when the one before [is](Self::is_idle).
    pub(super) fn push(&mut self, message: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => tls.writer().write_all(message),
            None => {
                if self.written == self.pending.len() {
                    self.pending.clear();
                    self.written = 0;
                }
                self.pending.extend_from_slice(message);
                Ok(())
            }
        }
    }

    /// Writes what can be written, and reads away what the collector says.
    ///
    /// # Errors
    ///
    /// The connection is over: [`io::ErrorKind::UnexpectedEof`] where the collector ended it.
    pub(super) fn advance(&mut self) -> io::Result<()> {
        self.read()?;
        let Self { stream, tls, pending, written, taken, .. } = self;
        loop {
            let result = match tls {
                Some(tls) if tls.wants_write() => tls.write_tls(stream),
                None if *written < pending.len() => {
                    stream.write(&pending[*written..]).inspect(|count| *written += count)
                }
                _ => break,
            };
            match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => *taken += count as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Collectors have nothing to say: what comes is read and forgotten.
    fn read(&mut self) -> io::Result<()> {
        let mut answer = [0; ANSWER];
        let result = match &mut self.tls {
            None => self.stream.read(&mut answer),
            Some(tls) => tls.read_tls(&mut self.stream).and_then(|count| {
                let state =
                    tls.process_new_packets().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
                let mut left = state.plaintext_bytes_to_read();
                while left > 0 {
                    left -= tls.reader().read(&mut answer)?.clamp(1, left);
                }
                Ok(count)
            }),
        };
        match result {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until something can be written or read.
    pub(super) fn wait(&self, time: Duration) {
        let writes = if self.is_idle() { PollFlags::empty() } else { PollFlags::OUT };
        // While it shakes hands, it writes only what it has.
        let writes = match &self.tls {
            Some(tls) if !tls.wants_write() => PollFlags::empty(),
            _ => writes,
        };
        let mut events = [PollFd::new(&self.stream, PollFlags::IN | writes)];
        let time = rustix::event::Timespec::try_from(time).ok();
        // Whatever comes of it, the next step shows.
        let _ = poll(&mut events, time.as_ref());
    }

    /// Bytes that the kernel has taken since the connection began.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Bytes of them that the other side's kernel has acknowledged.
    pub(super) fn acknowledged(&self) -> io::Result<u64> {
        Ok(self.taken.saturating_sub(unacknowledged(&self.stream)?))
    }

    /// Says that nothing more comes.
    pub(super) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        // It is over anyhow.
        let _ = self.advance();
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }
}

/// Bytes of a socket that are not sent yet, or not acknowledged (`SIOCOUTQ`, tcp(7)).
#[allow(unsafe_code)]
fn unacknowledged(socket: impl AsFd) -> io::Result<u64> {
    use rustix::ioctl::{Getter, Opcode, ioctl};
    /// The same number as `TIOCOUTQ`.
    const SIOCOUTQ: Opcode = 0x5411;
    // SAFETY: the command writes an int.
    let bytes = unsafe { ioctl(socket, Getter::<SIOCOUTQ, std::ffi::c_int>::new())? };
    Ok(u64::try_from(bytes).unwrap_or(0))
}
