//! A transaction on a pooled connection.

use std::ops::Deref;

use deadpool_postgres::{Object, StatementCache, Transaction};
use futures_util::FutureExt as _;
use tokio_postgres::{Client, Statement};

use super::failed;
use crate::error::Result;

/// An open transaction, rolled back when it is dropped. It runs statements as the connection below does.
///
/// Its `begin` travels with the first statement, which is a round trip less in every transaction.
#[derive(Debug)]
pub struct Tx<'a> {
    client: &'a Client,
    statements: &'a StatementCache,
    /// Ours to end, and not ended yet.
    open: bool,
}

impl<'a> Tx<'a> {
    pub(crate) fn begin(client: &'a mut Object) -> Result<Self> {
        Self::begin_with(client, "begin")
    }

    pub(crate) fn begin_read_only(client: &'a mut Object) -> Result<Self> {
        Self::begin_with(client, "begin read only")
    }

    /// Borrowed exclusively: nothing else gets between its statements.
    fn begin_with(client: &'a mut Object, begin: &str) -> Result<Self> {
        let statements = &*client.statement_cache;
        let client: &Client = client;
        send(client, begin)?;
        Ok(Self { client, statements, open: true })
    }

    /// Somebody else's, who ends it.
    pub(crate) fn lent(tx: &'a Transaction<'_>) -> Self {
        Self { client: tx.client(), statements: &tx.statement_cache, open: false }
    }

    /// Prepared once a connection.
    pub async fn prepare_cached(&self, statement: &str) -> Result<Statement, tokio_postgres::Error> {
        self.statements.prepare(self.client, statement).await
    }

    pub(crate) async fn commit(mut self) -> Result<()> {
        self.open = false;
        self.client.batch_execute("commit").await.map_err(|e| failed("commit", e))
    }

    pub(crate) async fn rollback(mut self) -> Result<()> {
        self.open = false;
        self.client.batch_execute("rollback").await.map_err(|e| failed("rollback", e))
    }
}

/// Puts a statement on the wire without waiting for its answer: being polled for the first time sends it.
fn send(client: &Client, statement: &str) -> Result<()> {
    match client.batch_execute(statement).now_or_never() {
        Some(Err(error)) => Err(failed(statement, error)),
        _ => Ok(()),
    }
}

impl Deref for Tx<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if self.open {
            // On the wire before anything that the connection is used for next; a connection that is gone has
            // rolled back by itself.
            let _ = send(self.client, "rollback");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;
    use crate::store::postgres::{Db, DbOptions};

    /// With one connection, so that whoever comes next gets the one that was used before.
    fn db() -> Db {
        let url = std::env::var("DIPMO_TEST_POSTGRES").expect("run the tests by `cargo xtask test`");
        Db::open(DbOptions { connections_max: 1, ..DbOptions::new(url) }).unwrap()
    }

    async fn rows(client: &Client) -> i64 {
        client.query_one("select count(*) from noted", &[]).await.unwrap().get(0)
    }

    #[tokio::test]
    async fn what_is_dropped_or_rolled_back_has_not_happened_and_what_is_committed_has() {
        let db = db();
        db.client().await.unwrap().batch_execute("create temp table noted (n integer)").await.unwrap();
        for (outcome, expected) in [("dropped", 0), ("rolled back", 0), ("committed", 1)] {
            let mut client = db.client().await.unwrap();
            let tx = Tx::begin(&mut client).unwrap();
            tx.execute("insert into noted values (1)", &[]).await.unwrap();
            match outcome {
                "dropped" => drop(tx),
                "rolled back" => tx.rollback().await.unwrap(),
                _ => tx.commit().await.unwrap(),
            }
            drop(client);
            let next = db.client().await.unwrap();
            assert_eq!(rows(&next).await, expected, "{outcome}");
        }
    }

    /// As when a deadline ends a settlement half-way.
    #[tokio::test]
    async fn a_transaction_given_up_in_the_middle_of_a_statement_leaves_nothing_behind() {
        let db = db();
        db.client().await.unwrap().batch_execute("create temp table noted (n integer)").await.unwrap();
        let mut client = db.client().await.unwrap();
        let tx = Tx::begin(&mut client).unwrap();
        assert!(tx.batch_execute("insert into noted values (1)").now_or_never().is_none(), "sent, not answered");
        drop(tx);
        drop(client);
        let mut next = db.client().await.unwrap();
        assert_eq!(rows(&next).await, 0);
        let tx = Tx::begin(&mut next).unwrap();
        tx.execute("insert into noted values (2)", &[]).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(rows(&next).await, 1);
    }

    #[tokio::test]
    async fn nothing_is_written_in_a_transaction_that_only_reads() {
        let db = db();
        let mut client = db.client().await.unwrap();
        let tx = Tx::begin_read_only(&mut client).unwrap();
        let refused = tx.batch_execute("create table never (n integer)").await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "25006");
    }

    /// Nobody waited for `begin`: that the server is gone is told by the first statement, or at once.
    #[tokio::test]
    async fn a_connection_that_is_gone_is_noticed() {
        let db = db();
        let mut client = db.client().await.unwrap();
        let own = client.query_one("select pg_backend_pid()", &[]).await.unwrap().get::<_, i32>(0);
        let _ = client.execute("select pg_terminate_backend($1)", &[&own]).await;
        let failed = match Tx::begin(&mut client) {
            Ok(tx) => tx.execute("select 1", &[]).await.is_err(),
            Err(_) => true,
        };
        assert!(failed);
    }
}
