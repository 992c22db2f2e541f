//! The stream of a real server.

use futures_util::FutureExt as _;
use time::macros::datetime;
use uuid::Uuid;

use super::super::row::Origin;
use super::super::slot::{insert_lsn, slot_status};
use super::super::test_world::{World, append_sql, keys, next, rows};
use super::*;

const EVERYTHING: &str = "
insert into dipmo.outbox (shard, message_id, destination, key, tenant, aggregate_type, aggregate_id, aggregate_version,
    event_type, event_version, correlation_id, causation_id, traceparent, headers, payload, occurred_at, created_at)
values (17, '00000000-0000-7000-8000-000000000001', 'KAFKA:orders', 'kéy', 'acme', 'order', 'o-1', 9000000000,
    'placed', 3, 'cor', 'cau', '00-ab-cd-01', '{\"b\": [1, null], \"a\": \"ü\"}', '\\x00ff0a7b',
    '2024-02-29 12:34:56.789012+02', '1999-12-31 23:59:59.999999+00'),
    (18, '00000000-0000-7000-8000-000000000002', 'KAFKA:orders', '', '', 'order', 'o-2', null,
    'placed', 1, null, null, null, null, null, 'infinity', '-infinity'),
    (19, '00000000-0000-7000-8000-000000000003', 'KAFKA:orders', 'k', '', 'order', 'o-3', -1,
    'placed', 1, '', '', '', '{}', '', '2000-01-01 00:00:00+00', '2000-01-01 00:00:00+00')";

#[tokio::test]
async fn every_column_arrives_as_it_was_written() {
    let world = World::new().await;
    world.execute(EVERYTHING).await;
    let mut stream = world.open().await;
    let rows = rows(&mut stream, 3).await;
    let full = &rows[0];
    assert_eq!((full.origin(), full.shard()), (Origin::Outbox, 17));
    assert!(rows[0].id() > 0 && rows[0].id() < rows[1].id());
    assert_eq!(full.message_id(), Uuid::from_u128(0x0000_0000_0000_7000_8000_0000_0000_0001));
    assert_eq!([full.destination(), full.key(), full.tenant()], ["KAFKA:orders", "kéy", "acme"]);
    assert_eq!([full.aggregate_type(), full.aggregate_id(), full.event_type()], ["order", "o-1", "placed"]);
    assert_eq!((full.aggregate_version(), full.event_version()), (Some(9_000_000_000), 3));
    assert_eq!(
        [full.correlation_id(), full.causation_id(), full.traceparent()],
        [Some("cor"), Some("cau"), Some("00-ab-cd-01")]
    );
    assert_eq!(full.headers(), Some(r#"{"a": "ü", "b": [1, null]}"#));
    assert_eq!(full.payload(), Some(&[0x00, 0xff, 0x0a, 0x7b][..]));
    assert_eq!(full.occurred_at(), datetime!(2024-02-29 10:34:56.789012 UTC));
    assert_eq!(full.created_at(), datetime!(1999-12-31 23:59:59.999999 UTC));
    let bare = &rows[1];
    assert_eq!((bare.key(), bare.tenant(), bare.aggregate_version()), ("", "", None));
    assert_eq!([bare.correlation_id(), bare.causation_id(), bare.traceparent(), bare.headers()], [None; 4]);
    assert_eq!(bare.payload(), None);
    assert!(bare.occurred_at().year() == 9999 && bare.created_at().year() == -9999);
    let empty = &rows[2];
    assert_eq!([empty.correlation_id(), empty.causation_id(), empty.traceparent()], [Some(""); 3]);
    assert_eq!((empty.payload(), empty.headers(), empty.aggregate_version()), (Some(&[][..]), Some("{}"), Some(-1)));
    assert!(full.size() > bare.size());
    world.end(stream).await;
}

#[tokio::test]
async fn rows_come_in_the_order_of_commits_and_rolled_back_ones_never() {
    let world = World::new().await;
    let (mut slow, mut undone) = (world.db.client().await.unwrap(), world.db.client().await.unwrap());
    let slow = slow.transaction().await.unwrap();
    slow.batch_execute(&world.sql(&append_sql("first written"))).await.unwrap();
    let undone = undone.transaction().await.unwrap();
    undone.batch_execute(&world.sql(&append_sql("undone"))).await.unwrap();
    world.append(&["one", "two"]).await;
    undone.rollback().await.unwrap();
    slow.commit().await.unwrap();
    world.execute("select dipmo.outbox_append('INTERNAL', 'order', 'internal', 'placed', '{}')").await;
    world.append(&["last"]).await;
    let mut stream = world.open().await;
    let (mut all, mut transactions) = (Vec::new(), Vec::new());
    while all.len() < 4 {
        let batch = next(&mut stream).await;
        assert!(batch.upto.is_some() && !batch.open);
        assert_eq!(batch.rows.len(), batch.transactions.len());
        transactions.extend(batch.transactions);
        all.extend(batch.rows);
    }
    assert_eq!(keys(&all), ["one", "two", "first written", "last"]);
    assert_eq!(transactions[0], transactions[1]);
    assert!(transactions[1] < transactions[2] && transactions[2] < transactions[3]);
    world.end(stream).await;
}

#[tokio::test]
async fn a_reconnect_repeats_exactly_what_was_not_confirmed() {
    let world = World::new().await;
    let mut stream = world.open().await;
    let (mut ends, mut seen) = (Vec::new(), 0);
    for (before, key) in ["a", "b", "c"].into_iter().enumerate() {
        world.append(&[key]).await;
        let written = insert_lsn(&world.db).await.unwrap();
        // The commit of a row may come in a batch of its own, and keepalives in between.
        let mut upto = Lsn(0);
        while upto < written {
            let batch = stream.next(1, 1 << 20, &|_| false).await.unwrap();
            seen += batch.rows.len();
            upto = batch.upto.unwrap_or(upto);
        }
        assert_eq!(seen, before + 1);
        ends.push(upto);
    }
    stream.confirm(ends[1]);
    stream.confirm(ends[0]);
    stream.close().await;
    let status = slot_status(&world.db, &world.slot).await.unwrap().unwrap();
    assert_eq!((status.active, status.confirmed_flush_lsn), (false, Some(ends[1])));
    // Where the caller asks for less than was confirmed, the server does not go back.
    let mut stream = world.open().await;
    assert_eq!(keys(&rows(&mut stream, 1).await), ["c"]);
    drop(stream);
    let mut stream = reopened(&world).await;
    world.append(&["d"]).await;
    assert_eq!(keys(&rows(&mut stream, 2).await), ["c", "d"]);
    world.end(stream).await;
}

/// A stream that was dropped, not closed, ends when the server notices.
async fn reopened(world: &World) -> WalStream {
    loop {
        match world.open_from(Lsn(0)).await {
            Ok(stream) => return stream,
            Err(error) => assert!(error.to_string().contains("is active"), "{error}"),
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_large_transaction_arrives_in_parts() {
    let world = World::new().await;
    let mut stream = world.open().await;
    world.append(&["before"]).await;
    world
        .execute(
            "insert into dipmo.outbox (shard, destination, key, aggregate_type, aggregate_id, event_type, payload)
             select 16, 'KAFKA:t', n::text, 'order', n::text, 'placed', convert_to(repeat('x', 100), 'UTF8')
             from generate_series(1, 100000) n",
        )
        .await;
    // Keepalives may come first, and the commit of the row by itself.
    let mut before = Vec::new();
    while stream.transaction.is_some() || before.is_empty() {
        before.extend(stream.next(1, 1 << 20, &|_| false).await.unwrap().rows);
    }
    assert_eq!(keys(&before), ["before"]);
    let (mut seen, mut parts, mut number) = (0, 0, None);
    loop {
        let batch = stream.next(7_000, 1 << 20, &|_| false).await.unwrap();
        for row in &batch.rows {
            seen += 1;
            assert_eq!(row.key(), seen.to_string());
        }
        assert!(batch.rows.len() <= 7_000);
        assert!(batch.transactions.iter().all(|of| *of == *number.get_or_insert(*of)));
        parts += usize::from(!batch.rows.is_empty());
        assert_eq!(batch.upto.is_none(), batch.open, "a part confirms nothing");
        if seen == 100_000 && !batch.open {
            break;
        }
    }
    assert!(parts >= 15, "{parts} parts");
    world.end(stream).await;
}

#[tokio::test]
async fn bytes_limit_a_batch_too() {
    let world = World::new().await;
    world.append(&["a", "b", "c"]).await;
    let mut stream = world.open().await;
    let mut counts = Vec::new();
    while counts.iter().sum::<usize>() < 3 {
        counts.push(stream.next(1000, 1, &|_| false).await.unwrap().rows.len());
    }
    counts.retain(|count| *count > 0);
    assert_eq!(counts, [1, 1, 1]);
    world.end(stream).await;
}

#[tokio::test]
async fn a_transaction_that_must_stay_whole_is_not_cut() {
    let world = World::new().await;
    let whole = "select dipmo.outbox_append('KAFKA:whole', 'order', 'w', 'placed', '{}');";
    let ordinary = append_sql("o").repeat(5);
    world.execute(&format!("begin;{whole}{ordinary}commit;begin;{ordinary}commit")).await;
    let mut stream = world.open().await;
    let mut batches = Vec::new();
    while batches.iter().map(|batch: &WalBatch| batch.rows.len()).sum::<usize>() < 11 {
        let batch = stream.next(2, 1 << 20, &|destination| destination == "KAFKA:whole").await.unwrap();
        batches.extend((!batch.rows.is_empty()).then_some(batch));
    }
    let shapes: Vec<_> = batches.iter().map(|batch| (batch.rows.len(), batch.open)).collect();
    assert_eq!(shapes[..3], [(6, false), (2, true), (2, true)]);
    assert_eq!(shapes[3].0, 1);
    world.end(stream).await;
}

#[tokio::test]
async fn the_position_moves_on_without_any_row_of_ours() {
    let world = World::new().await;
    let mut stream = world.open().await;
    world.execute("create table dipmo.other (n integer)").await;
    let mut confirmed = Lsn(0);
    for _ in 0..3 {
        world.execute("insert into dipmo.other values (1)").await;
        let written = insert_lsn(&world.db).await.unwrap();
        while confirmed < written {
            let batch = next(&mut stream).await;
            assert!(batch.rows.is_empty() && !batch.open);
            confirmed = confirmed.max(batch.upto.unwrap());
            stream.confirm(confirmed);
        }
    }
    stream.close().await;
    let status = slot_status(&world.db, &world.slot).await.unwrap().unwrap();
    assert!(status.confirmed_flush_lsn >= Some(confirmed), "{status:?} {confirmed}");
    let stream = world.open().await;
    world.end(stream).await;
}

#[tokio::test]
async fn a_cancelled_wait_loses_nothing() {
    let world = World::new().await;
    let mut stream = world.open().await;
    let all: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    let writer = async {
        for key in &all {
            world.append(&[key]).await;
        }
    };
    let reader = async {
        let mut seen = Vec::new();
        while seen.len() < all.len() {
            // Polled once, then dropped.
            match stream.next(3, 1 << 20, &|_| false).now_or_never() {
                Some(batch) => seen.extend(batch.unwrap().rows),
                None => tokio::task::yield_now().await,
            }
        }
        seen
    };
    let ((), seen) = tokio::join!(writer, reader);
    assert_eq!(keys(&seen), all);
    world.end(stream).await;
}

#[tokio::test]
async fn emitted_messages_arrive_with_the_rows_of_their_transaction() {
    let world = World::new().await;
    world
        .execute(&format!(
            "create function dipmo.emit(envelope text, payload bytea) returns pg_lsn language sql as $$
                 select pg_logical_emit_message(true, 'dipmo.outbox',
                     int4send(octet_length(convert_to(envelope, 'UTF8'))) || convert_to(envelope, 'UTF8') || payload) $$;
             begin;
             select pg_logical_emit_message(true, 'another', 'ignored');
             select dipmo.emit('{{\"destination\": \"KAFKA:e\", \"aggregate_id\": \"a\", \"headers\": {{\"h\": 1}}}}', '\\x00ff');
             {}
             select pg_logical_emit_message(true, 'dipmo.outbox', 'no envelope');
             commit;
             begin;
             select dipmo.emit('{{\"destination\": \"KAFKA:undone\"}}', '');
             rollback;
             select pg_logical_emit_message(false, 'dipmo.outbox', 'loose')",
            append_sql("row")
        ))
        .await;
    let mut stream = world.open().await;
    let mut all = Vec::new();
    let mut transactions = Vec::new();
    while all.len() < 4 {
        let batch = next(&mut stream).await;
        all.extend(batch.rows);
        transactions.extend(batch.transactions);
    }
    assert_eq!(all.iter().map(WalRow::destination).collect::<Vec<_>>(), ["KAFKA:e", "KAFKA:t", "", ""]);
    let origins = [Origin::Emitted, Origin::Outbox, Origin::Emitted, Origin::Emitted];
    assert_eq!(all.iter().map(WalRow::origin).collect::<Vec<_>>(), origins);
    assert_eq!((all[0].key(), all[0].id(), all[0].shard()), ("a", 0, 0));
    assert_eq!((all[0].headers(), all[0].payload()), (Some("{\"h\": 1}"), Some(&[0x00, 0xff][..])));
    assert_eq!(all[2].payload(), Some(&b"no envelope"[..]));
    assert_eq!(all[3].payload(), Some(&b"loose"[..]));
    assert!(transactions[..3].iter().all(|of| *of == transactions[0]) && transactions[3] != transactions[0]);
    world.end(stream).await;
}

#[tokio::test]
async fn a_foreign_outbox_is_read_as_debezium_reads_it() {
    let world = World::with_foreign(
        "id uuid primary key, aggregate_id varchar not null, aggregate_type varchar not null, event_type varchar not null,
         timestamp timestamptz not null, payload jsonb not null, metadata jsonb",
    )
    .await;
    world
        .execute(
            "insert into dipmo.outbox_messages values
                 ('00000000-0000-7000-8000-000000000001', 'o-1', 'order', 'placed', '2024-01-01 00:00:00+00',
                  '{\"b\":1,  \"a\":[]}', '{\"k\": \"v\"}'),
                 ('00000000-0000-7000-8000-000000000002', 'o-2', 'order', 'placed', '2024-01-01 00:00:00+00',
                  'null', '[1]'),
                 ('00000000-0000-7000-8000-000000000003', 'o-3', 'order', 'placed', '2024-01-01 00:00:00+00',
                  '\"text\"', null);
             update dipmo.outbox_messages set event_type = 'changed';
             delete from dipmo.outbox_messages",
        )
        .await;
    let mut stream = world.open().await;
    let rows = rows(&mut stream, 3).await;
    assert_eq!((rows[0].origin(), rows[0].id(), rows[0].shard()), (Origin::Foreign(0), 0, 0));
    assert_eq!(rows[0].message_id(), Uuid::from_u128(0x0000_0000_0000_7000_8000_0000_0000_0001));
    assert_eq!([rows[0].destination(), rows[0].key()], ["KAFKA:outbox.order", "o-1"]);
    assert_eq!([rows[0].aggregate_type(), rows[0].aggregate_id(), rows[0].event_type()], ["order", "o-1", "placed"]);
    assert_eq!(rows[0].occurred_at(), datetime!(2024-01-01 0:00 UTC));
    let payloads: Vec<_> = rows.iter().map(|row| std::str::from_utf8(row.payload().unwrap()).unwrap()).collect();
    assert_eq!(payloads, [r#"{"a": [], "b": 1}"#, "null", "\"text\""]);
    let headers: Vec<_> = rows.iter().map(WalRow::headers).collect();
    assert_eq!(headers, [Some(r#"{"k": "v"}"#), None, None]);
    world.end(stream).await;
}

#[tokio::test]
async fn a_foreign_table_of_another_layout_is_an_error_that_says_what_is_missing() {
    let world = World::with_foreign("id uuid primary key, payload jsonb").await;
    world.execute("insert into dipmo.outbox_messages values (gen_random_uuid(), '{}')").await;
    let mut stream = world.open().await;
    let error = loop {
        match stream.next(1, 1, &|_| false).await {
            Ok(batch) => assert!(batch.rows.is_empty()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("has no column aggregate_id"), "{error}");
    let after = stream.next(1, 1, &|_| false).await.unwrap_err();
    assert!(after.to_string().contains("open it again"), "what failed must not be read past: {after}");
    world.end(stream).await;
}

#[tokio::test]
async fn one_slot_has_one_reader_and_a_missing_one_none() {
    let world = World::new().await;
    let stream = world.open().await;
    let error = world.open_from(Lsn(0)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("is active"), "{error}");
    let missing = WalStream::open(&world.db, "no_such_slot", "p", &[], Lsn(0)).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    world.end(stream).await;
}
