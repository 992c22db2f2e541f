//! The connection to PostgreSQL is encrypted when asked for, and the server must prove who it is.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::path::PathBuf;

use dipmo::ErrorKind;
use dipmo::store::postgres::{Db, DbOptions, schema};
use testbed::{Postgres, PostgresOptions};

/// A server with a certificate of its own making, and the file that vouches for it.
async fn server_with_certificate() -> (Postgres, PathBuf) {
    let postgres = Postgres::start(PostgresOptions::default()).unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    let dir = postgres.data_dir();
    let owner = std::fs::metadata(&dir).unwrap();
    for (name, text) in [("server.crt", made.cert.pem()), ("server.key", made.signing_key.serialize_pem())] {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    let db = Db::open(DbOptions::new(postgres.url())).unwrap();
    let client = db.client().await.unwrap();
    client.execute("alter system set ssl = on", &[]).await.unwrap();
    client.execute("select pg_reload_conf()", &[]).await.unwrap();
    let vouches = dir.join("server.crt");
    (postgres, vouches)
}

fn options(postgres: &Postgres, ca_file: Option<PathBuf>) -> DbOptions {
    DbOptions { ca_file, ..DbOptions::new(format!("{}?sslmode=require", postgres.url())) }
}

#[tokio::test]
async fn a_known_server_is_reached_by_tls_and_an_unknown_one_is_refused() {
    let (postgres, vouches) = server_with_certificate().await;
    let db = Db::open(options(&postgres, Some(vouches))).unwrap();
    schema::migrate(&db).await.unwrap();
    let client = db.client().await.unwrap();
    let ssl = client.query_one("select ssl from pg_stat_ssl where pid = pg_backend_pid()", &[]).await.unwrap();
    assert!(ssl.get::<_, bool>(0));
    // The system's authorities have never heard of it.
    let stranger = Db::open(options(&postgres, None)).unwrap();
    assert_eq!(stranger.client().await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_ca_file_that_cannot_work_is_refused_with_the_reason() {
    let url = "postgres://postgres@127.0.0.1:1/postgres";
    let missing =
        DbOptions { ca_file: Some("/nonexistent/ca.pem".into()), ..DbOptions::new(format!("{url}?sslmode=require")) };
    assert!(Db::open(missing).unwrap_err().to_string().contains("/nonexistent/ca.pem"));
    let pointless = DbOptions { ca_file: Some("ca.pem".into()), ..DbOptions::new(url) };
    assert!(Db::open(pointless).unwrap_err().to_string().contains("sslmode=require"));
}
