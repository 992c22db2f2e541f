//! A schema, a publication and a slot of a test's own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use uuid::Uuid;

use super::slot::{create_slot, drop_slot, ensure_publication, publication_name};
use super::{ForeignTable, Lsn, WalBatch, WalRow, WalStream};
use crate::store::postgres::{Db, DbOptions, schema};

pub(super) struct World {
    pub(super) db: Db,
    pub(super) slot: String,
    pub(super) foreign: Vec<ForeignTable>,
}

pub(super) fn url() -> String {
    std::env::var("DIPMO_TEST_POSTGRES").expect("run the tests by `cargo xtask test`, which starts the servers")
}

impl World {
    pub(super) async fn new() -> Self {
        Self::on(DbOptions::new(url())).await
    }

    pub(super) async fn on(options: DbOptions) -> Self {
        let name = format!("t{}", Uuid::now_v7().simple());
        let db = Db::open(DbOptions { schema: name.clone(), ..options }).unwrap();
        schema::migrate(&db).await.unwrap();
        ensure_publication(&db, &[]).await.unwrap();
        create_slot(&db, &name).await.unwrap();
        Self { db, slot: name, foreign: Vec::new() }
    }

    /// A world with a table `outbox_messages` beside our own.
    pub(super) async fn with_foreign(columns: &str) -> Self {
        let mut world = Self::new().await;
        world.execute(&format!("create table dipmo.outbox_messages ({columns})")).await;
        world.foreign = vec![ForeignTable::new(world.db.schema(), "outbox_messages")];
        ensure_publication(&world.db, &world.foreign).await.unwrap();
        world
    }

    pub(super) async fn execute(&self, sql: &str) {
        let client = self.db.client().await.unwrap();
        client.batch_execute(&self.sql(sql)).await.unwrap();
    }

    /// `dipmo.` stands for this world's schema.
    pub(super) fn sql(&self, sql: &str) -> String {
        sql.replace("dipmo.", &format!("{}.", self.db.schema()))
    }

    /// One transaction with a row for each key.
    pub(super) async fn append(&self, keys: &[&str]) {
        let keys = keys.iter().map(|key| append_sql(key)).collect::<String>();
        self.execute(&format!("begin;{keys}commit")).await;
    }

    pub(super) async fn open(&self) -> WalStream {
        self.open_from(Lsn(0)).await.unwrap()
    }

    pub(super) async fn open_from(&self, from: Lsn) -> crate::Result<WalStream> {
        WalStream::open(&self.db, &self.slot, &publication_name(self.db.schema()), &self.foreign, from).await
    }

    /// Slots are few and belong to the whole server.
    pub(super) async fn end(self, stream: WalStream) {
        stream.close().await;
        drop_slot(&self.db, &self.slot).await.unwrap();
    }
}

pub(super) fn append_sql(key: &str) -> String {
    format!("select dipmo.outbox_append('KAFKA:t', 'order', '{key}', 'placed', '{{}}');")
}

pub(super) async fn next(stream: &mut WalStream) -> WalBatch {
    stream.next(1000, 1 << 20, &|_| false).await.unwrap()
}

/// Reads until so many rows are there.
pub(super) async fn rows(stream: &mut WalStream, count: usize) -> Vec<WalRow> {
    let mut rows = Vec::new();
    while rows.len() < count {
        rows.extend(next(stream).await.rows);
    }
    assert_eq!(rows.len(), count, "more rows than expected");
    rows
}

pub(super) fn keys(rows: &[WalRow]) -> Vec<&str> {
    rows.iter().map(WalRow::key).collect()
}
