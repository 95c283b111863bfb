//! How does a client know a server of TCP, and the server its clients?
//!
//! The server's half is what its config says (`[control]` with `certificate`, `key` and `client-ca`), read elsewhere
//! and asked for at each handshake, so that other files are in force without a restart ([`Present`]). The client's
//! half is [`Trust`]: the authority of the server's certificate, and a certificate of its own where the server wants
//! one. rustls does the cryptography, as for NBD: TLS 1.2 and 1.3, by ring.
//!
//! Invariant: a client with a [`Trust`] never says its token to a server that it does not know.

use mqfq_report::plain;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

pub use tokio_rustls::rustls::ServerConfig;

/// Configuration of the next handshake.
pub type Present = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// Files in PEM form that a client needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Files {
    /// The authority of the server's certificate, or that certificate itself.
    pub ca: Option<PathBuf>,
    /// The client's certificate, and those between it and its authority.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// A client's authorities and certificate.
#[derive(Clone, Debug)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Reads the files; `None`: there is none of them, and connections are in the clear.
    ///
    /// # Errors
    /// One sentence: files that do not go together, or the first that holds nothing of its kind.
    pub fn read(files: &Files) -> Result<Option<Trust>, String> {
        let Files { ca, certificate, key } = files;
        let (ca, own) = match (ca, certificate, key) {
            (None, None, None) => return Ok(None),
            (Some(ca), None, None) => (ca, None),
            (Some(ca), Some(certificate), Some(key)) => (ca, Some((certificate, key))),
            (None, ..) => return Err("--cert and --key need --ca, the authority of the server's certificate".into()),
            _ => return Err("--cert and --key go together, allowed are both or none".into()),
        };
        let mut roots = RootCertStore::empty();
        for one in certificates(ca)? {
            let wrong = |error| format!("{} holds a certificate that is no authority's: {error}", ca.display());
            roots.add(one).map_err(wrong)?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let builder = builder.with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let none = |_| format!("{} holds no private key in PEM form", key.display());
                let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(none)?;
                let wrong = |error| format!("{} and {}: {error}", certificate.display(), key.display());
                builder.with_client_auth_cert(certificates(certificate)?, private).map_err(wrong)?
            }
        };
        Ok(Some(Trust(Arc::new(config))))
    }

    /// The connection to `at`, which is a host and a port, after its handshake.
    ///
    /// # Errors
    /// The handshake's.
    pub(crate) async fn connect(&self, at: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let host = at.rsplit_once(':').map_or(at, |(host, _)| host).trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.0.clone()).connect(name, stream).await
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("cannot read {}: {}", path.display(), plain(&error)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(path)?;
    match CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>() {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(format!("{} holds no certificate in PEM form", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_go_together_or_a_sentence_says_how() {
        let files = |ca: Option<&str>, certificate: Option<&str>, key: Option<&str>| {
            let path = |path: Option<&str>| path.map(PathBuf::from);
            Trust::read(&Files { ca: path(ca), certificate: path(certificate), key: path(key) })
                .map(|trust| trust.is_some())
        };
        assert_eq!(files(None, None, None), Ok(false));
        let alone = "--cert and --key need --ca, the authority of the server's certificate";
        assert_eq!(files(None, Some("/c"), Some("/k")), Err(alone.to_owned()));
        let half = "--cert and --key go together, allowed are both or none";
        assert_eq!(files(Some("/ca"), Some("/c"), None), Err(half.to_owned()));
        let nothing = "/dev/null holds no certificate in PEM form";
        assert_eq!(files(Some("/dev/null"), None, None), Err(nothing.to_owned()));
        assert!(files(Some("/no/such"), None, None).unwrap_err().starts_with("cannot read /no/such: "));
    }
    /// Certificate of an authority.
    const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----
MIIBcTCCARegAwIBAgIUaTqby76ZOXbbKxsgLYLD5H5UlO0wCgYIKoZIzj0EAwIw
DTELMAkGA1UEAwwCY2EwIBcNMjYxMTI4MTg0MTAwWhgPMjEyNjExMDQxODQxMDBa
MA0xCzAJBgNVBAMMAmNhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE/L4jGafA
4xQ6cjczyuugxk2DpMDXQtTRyn9G4oK8ZaSoGZ9dfwpGJ2ZyBXReJgyvchFJSxgd
ul0Qbh2aQdPRP6NTMFEwHQYDVR0OBBYEFOMa36bTBKY5UIyIzmki6k86WU5QMB8G
A1UdIwQYMBaAFOMa36bTBKY5UIyIzmki6k86WU5QMA8GA1UdEwEB/wQFMAMBAf8w
CgYIKoZIzj0EAwIDSAAwRQIgRjrbSVfzoPI7mZ64OBETA2U/B8Bjn95Yf/uWblhW
WhcCIQC34Apc3ADDxz6CoLNJsiGX7PWtxVS5hQKAhL2qwL+XgQ==
-----END CERTIFICATE-----
";

    #[test]
    fn each_certificate_of_an_authorities_file_is_an_authoritys() {
        let other = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let path = std::env::temp_dir().join(format!("mqfq-control-ca-{}.pem", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Trust::read(&Files { ca: Some(path.clone()), ..Files::default() }).map(|trust| trust.is_some())
        };
        let (good, bad) = (read(AUTHORITY), read(&[AUTHORITY, other].concat()));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(good, Ok(true));
        let why = bad.unwrap_err();
        assert!(why.starts_with(&format!("{} holds a certificate that is no authority's: ", path.display())), "{why}");
    }
}
