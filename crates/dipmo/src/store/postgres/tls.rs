//! Encryption towards PostgreSQL: off, unless the URL says `sslmode=require`; then the server must also
//! prove who it is, by a certificate of the system's authorities or of a given file.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Result};

/// The connector for every connection. Where no encryption is asked for, none is tried: a half-way
/// attempt would fail on servers that have a certificate nobody knows.
pub(super) fn connector(config: &mut Config, ca_file: Option<&Path>) -> Result<MakeRustlsConnect> {
    let roots = match (config.get_ssl_mode() == SslMode::Require, ca_file) {
        (true, Some(path)) => from_file(path)?,
        (true, None) => from_system()?,
        (false, Some(_)) => {
            return Err(Error::invalid("a CA file is given, but the database URL does not say sslmode=require"));
        }
        (false, None) => {
            config.ssl_mode(SslMode::Disable);
            RootCertStore::empty()
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("setting up TLS").source(error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(client))
}

fn from_file(path: &Path) -> Result<RootCertStore> {
    let wrong = |why: String| Error::invalid(format!("CA file {}: {why}", path.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("it holds no certificate".to_owned()));
    }
    Ok(roots)
}

fn from_system() -> Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(Error::invalid("this system has no certificate authorities: give a CA file"));
    }
    Ok(roots)
}
