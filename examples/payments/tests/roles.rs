//! In a shared database the login of a context sees its own tables and those of dipmo, and nothing else.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use payments::context::Context;

#[tokio::test]
async fn a_context_cannot_touch_the_tables_of_another() {
    let platform = support::platform().await;
    for mine in Context::ALL {
        let db = platform.db(&platform.contexts[&mine], "test").unwrap();
        let client = db.client().await.unwrap();
        for theirs in Context::ALL {
            let tables = client
                .query(
                    "select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
                     where n.nspname = $1 and c.relkind = 'r'",
                    &[&platform.contexts[&theirs].domain_schema],
                )
                .await
                .unwrap();
            assert!(!tables.is_empty(), "{theirs:?} has tables");
            for table in tables {
                let table = format!("{}.{}", platform.contexts[&theirs].domain_schema, table.get::<_, String>(0));
                let read = client.query(&format!("select 1 from {table}"), &[]).await;
                let wrote = client.execute(&format!("delete from {table}"), &[]).await;
                if mine == theirs {
                    assert!(read.is_ok() && wrote.is_ok(), "{mine:?} may use {table}");
                    continue;
                }
                for refused in [read.map(drop), wrote.map(drop)] {
                    let code = refused.unwrap_err().code().map(|code| code.code().to_owned());
                    assert_eq!(code.as_deref(), Some("42501"), "{mine:?} on {table}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_context_cannot_make_tables_or_change_those_of_dipmo() {
    let platform = support::platform().await;
    let site = &platform.contexts[&Context::Fx];
    let db = platform.db(site, "test").unwrap();
    let client = db.client().await.unwrap();
    let (own, dipmo) = (&site.domain_schema, &site.dipmo_schema);
    for sql in [
        format!("create table {own}.mine (n integer)"),
        format!("create table {dipmo}.mine (n integer)"),
        format!("alter table {dipmo}.outbox disable trigger all"),
        format!("truncate {dipmo}.journal"),
    ] {
        let refused = client.batch_execute(&sql).await.unwrap_err();
        assert_eq!(refused.code().map(|code| code.code()), Some("42501"), "{sql}");
    }
    let appended = format!("select {dipmo}.outbox_append('INTERNAL', 'A', 'a', 'E', '{{}}')");
    client.query_one(&appended, &[]).await.unwrap();
}
