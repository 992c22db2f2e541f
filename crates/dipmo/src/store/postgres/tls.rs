//! Encryption towards PostgreSQL: off, unless the URL says `sslmode=require`.

use std::path::Path;

use rustls::RootCertStore;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Result};
use crate::tls;

/// The connector for every connection. Where no encryption is asked for, none is tried: a half-way
/// attempt would fail on servers that have a certificate nobody knows.
pub(super) fn connector(config: &mut Config, ca_file: Option<&Path>) -> Result<MakeRustlsConnect> {
    let roots = match (config.get_ssl_mode() == SslMode::Require, ca_file) {
        (true, ca_file) => tls::roots(ca_file)?,
        (false, Some(_)) => {
            return Err(Error::invalid("a CA file is given, but the database URL does not say sslmode=require"));
        }
        (false, None) => {
            config.ssl_mode(SslMode::Disable);
            RootCertStore::empty()
        }
    };
    Ok(MakeRustlsConnect::new(tls::client_config(roots)?))
}
