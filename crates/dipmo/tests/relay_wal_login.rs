//! The replication connection logs in as the pool does: by TLS, SCRAM, md5 or a unix socket, and tells
//! what is wrong when it cannot.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/relay.rs"]
mod support;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dipmo::clock::Clock;
use dipmo::relay::{Relay, RelayOptions};
use dipmo::store::postgres::{Db, DbOptions};
use support::{Scripted, World};
use testbed::{Postgres, PostgresOptions};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(60);
const PASSWORD: &str = "correct horse";

/// Who may come in how: by name of the role.
const ACCESS: &str = "
local     all  all                    trust
hostssl   all  by_scram  127.0.0.1/32 scram-sha-256
hostnossl all  by_scram  127.0.0.1/32 reject
host      all  by_md5    127.0.0.1/32 md5
host      all  by_text   127.0.0.1/32 password
host      all  stranger  127.0.0.1/32 trust
host      all  postgres  127.0.0.1/32 trust
";

const ROLES: &str = "
set password_encryption = 'scram-sha-256';
create role by_scram login superuser password 'correct horse';
create role by_text login superuser password 'correct horse';
set password_encryption = 'md5';
create role by_md5 login superuser password 'correct horse';
create role stranger login noreplication;
alter system set ssl = on;
select pg_reload_conf()";

struct Server {
    postgres: Postgres,
    sockets: PathBuf,
    world: World,
}

impl Server {
    async fn start() -> Self {
        let sockets = std::env::temp_dir().join(format!("dipmo-{}", Uuid::now_v7().simple()));
        std::fs::create_dir(&sockets).unwrap();
        std::fs::set_permissions(&sockets, PermissionsExt::from_mode(0o777)).unwrap();
        let settings = vec![("unix_socket_directories".to_owned(), sockets.display().to_string())];
        let postgres = Postgres::start(PostgresOptions { settings, ..PostgresOptions::default() }).unwrap();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let owner = std::fs::metadata(postgres.data_dir()).unwrap();
        let files = [
            ("server.crt", made.cert.pem()),
            ("server.key", made.signing_key.serialize_pem()),
            ("pg_hba.conf", ACCESS.to_owned()),
        ];
        for (name, text) in files {
            let path = postgres.data_dir().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
        let world = World::on(&postgres.url(), Clock::database()).await;
        for statement in ROLES.split(';') {
            world.execute(statement).await;
        }
        world.execute("update dipmo.relay_lane set reader = 'wal' where lane = 'KAFKA'").await;
        Self { postgres, sockets, world }
    }

    fn by_password(&self, role: &str, more: &str) -> String {
        let port = self.postgres.port();
        format!("host=127.0.0.1 port={port} user={role} password='{PASSWORD}' dbname=postgres {more}")
    }

    /// A relay that logs in so, over the schema of this world.
    fn relay(&self, url: &str, broker: &Arc<Scripted>) -> Relay {
        let ca_file = url.contains("sslmode=require").then(|| self.postgres.data_dir().join("server.crt"));
        let schema = self.world.db.schema().to_owned();
        let db = Db::open(DbOptions { schema, ca_file, ..DbOptions::new(url) }).unwrap();
        Relay::new(db, RelayOptions { internal: false, ..broker.options("login") }).unwrap()
    }

    /// Sends one message from the WAL as this role, and tells how its walsender is connected.
    async fn send_as(&self, url: &str, body: &str) -> String {
        let broker = Scripted::new();
        let relay = self.relay(url, &broker);
        let begun = Instant::now();
        let following = "dipmo.relay_lane where lane = 'KAFKA' and position is not null";
        let walsender = "pg_stat_replication r join pg_stat_ssl s using (pid)";
        while self.world.count(following).await == 0 || self.world.count(walsender).await == 0 {
            relay.run_once().await.unwrap();
            assert!(begun.elapsed() < PATIENCE, "{url}: the WAL is not read");
        }
        self.world.append("KAFKA:orders", "a", &[body]).await;
        while broker.bodies().is_empty() {
            relay.run_once().await.unwrap();
            assert!(begun.elapsed() < PATIENCE, "{url}: nothing was sent");
        }
        assert_eq!(broker.bodies(), [body]);
        let how =
            format!("select usename || ' ' || s.ssl || ' ' || coalesce(host(client_addr), 'socket') from {walsender}");
        let how = self.world.texts(&how).await.remove(0);
        relay.stop().await.unwrap();
        drop(relay);
        while self.world.count("pg_replication_slots where active").await > 0 {
            tokio::task::yield_now().await;
        }
        how
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.sockets);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wal_is_read_by_tls_scram_md5_and_unix_socket() {
    let server = Server::start().await;
    let port = server.postgres.port();
    let tls = server.by_password("by_scram", "sslmode=require");
    assert_eq!(server.send_as(&tls, "1").await, "by_scram true 127.0.0.1");
    let md5 = server.by_password("by_md5", "sslmode=disable");
    assert_eq!(server.send_as(&md5, "2").await, "by_md5 false 127.0.0.1");
    let text = server.by_password("by_text", "sslmode=disable");
    assert_eq!(server.send_as(&text, "3").await, "by_text false 127.0.0.1");
    let socket = format!("host={} port={port} user=postgres dbname=postgres", server.sockets.display());
    assert_eq!(server.send_as(&socket, "4").await, "postgres false socket");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_replicate_is_told_so_and_the_table_is_read_instead() {
    let server = Server::start().await;
    let schema = server.world.db.schema().to_owned();
    server
        .world
        .execute(&format!(
            "grant usage on schema {schema} to stranger; grant all on all tables in schema {schema} to stranger;
             grant all on all sequences in schema {schema} to stranger; grant all on all functions in schema {schema} to stranger"
        ))
        .await;
    let broker = Scripted::new();
    let port = server.postgres.port();
    let relay = server.relay(&format!("host=127.0.0.1 port={port} user=stranger dbname=postgres"), &broker);
    server.world.append("KAFKA:orders", "a", &["1"]).await;
    let begun = Instant::now();
    while broker.bodies().is_empty() {
        relay.run_once().await.unwrap();
        assert!(begun.elapsed() < PATIENCE, "nothing was sent");
    }
    // The next heartbeat tells operators why the WAL is not read.
    let problem = "select detail ->> 'reader_problem' from dipmo.node where role = 'relay'";
    let mut said = String::new();
    while !said.contains("permission denied") {
        relay.run_once().await.unwrap();
        said = server.world.texts(problem).await.join(" ");
        assert!(begun.elapsed() < PATIENCE, "nothing is said of the WAL: {said}");
    }
}
