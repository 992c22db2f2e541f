//! Encryption towards servers: they must prove who they are, by a certificate of the system's authorities
//! or of a given file.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Result};

/// Who may vouch for a server: the certificates of the file, else those that the system trusts.
pub(crate) fn roots(ca_file: Option<&Path>) -> Result<RootCertStore> {
    ca_file.map_or_else(from_system, from_file)
}

pub(crate) fn client_config(roots: RootCertStore) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| Error::invalid("setting up TLS").source(error))?;
    Ok(versions.with_root_certificates(roots).with_no_client_auth())
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
