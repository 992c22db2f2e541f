//! `dipmo batch` against a real schema.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use world::World;

const ID: &str = "018f0000-0000-7000-8000-000000000001";

async fn batch(world: &World, status: &str, items: &[(&str, &str)]) {
    let ended = if status == "RUNNING" { "null" } else { "now()" };
    world
        .run_sql(&format!(
            "insert into batch_run (batch_id, type, status, expected, created_at, completed_at)
             values ('{ID}', 'Payment', '{status}', {}, now() - interval '10 s', {ended})",
            items.len()
        ))
        .await;
    for (item, status) in items {
        world
            .run_sql(&format!(
                "insert into batch_item (batch_id, item_id, status, saga_id, last_error)
                 values ('{ID}', '{item}', '{status}', gen_random_uuid(), 'NO_FUNDS')"
            ))
            .await;
    }
}

#[tokio::test]
async fn a_batch_is_listed_and_shown() {
    let world = World::new().await;
    batch(&world, "RUNNING", &[("a", "SUCCEEDED"), ("b", "FAILED"), ("c", "RUNNING")]).await;
    assert_eq!(world.dipmo(&["batch", "list", "-o", "name"]).ok().out, format!("{ID}\n"));
    let table = world.dipmo(&["batch", "list", "--status", "RUNNING"]).ok().out;
    assert!(table.contains("Payment") && table.contains("EXPECTED"), "{table}");
    world.dipmo(&["batch", "list", "--status", "DONE"]).fails(2, "PARTIAL");
    let shown = world.dipmo(&["batch", "show", ID, "-o", "json"]).ok().json();
    assert_eq!((shown["succeeded"].as_i64(), shown["open"].as_i64()), (Some(1), Some(1)));
    assert_eq!(shown["failures"][0]["error"], "NO_FUNDS");
    world.dipmo(&["batch", "show", "018f0000-0000-7000-8000-0000000000ff"]).fails(5, "there is no batch");
}

#[tokio::test]
async fn watching_ends_with_the_batch_and_tells_how_it_went() {
    let world = World::new().await;
    batch(&world, "PARTIAL", &[("a", "SUCCEEDED"), ("b", "FAILED")]).await;
    let partial = world.dipmo(&["batch", "watch", ID]);
    assert_eq!(partial.code, 10, "{partial:?}");
    assert_eq!(partial.out.lines().count(), 1, "{partial:?}");
    assert!(partial.out.contains("PARTIAL 2 of 2, 1 succeeded, 1 failed"), "{partial:?}");
    world.run_sql("update batch_item set status = 'SUCCEEDED'; update batch_run set status = 'SUCCEEDED'").await;
    assert_eq!(world.dipmo(&["batch", "watch", ID, "-o", "name"]).ok().out, "SUCCEEDED\n");
}
