//! Versions of definitions: all are kept, one of each name is current.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/operator.rs"]
mod support;

use dipmo::store::postgres::definitions::{NewDefinition, all, register};
use serde_json::json;
use support::World;

fn version(name: &str, hash: &str) -> NewDefinition {
    NewDefinition { name: name.to_owned(), hash: hash.to_owned(), body: json!({ "hash": hash }) }
}

async fn kept(world: &World) -> Vec<(String, String, bool)> {
    all(&world.db).await.unwrap().into_iter().map(|d| (d.name, d.hash, d.current)).collect()
}

fn row(name: &str, hash: &str, current: bool) -> (String, String, bool) {
    (name.to_owned(), hash.to_owned(), current)
}

#[tokio::test]
async fn a_new_version_becomes_current_and_the_old_one_stays() {
    let world = World::real_time().await;
    assert_eq!(register(&world.db, &[version("Pay", "1"), version("Ship", "1")]).await.unwrap(), ["Pay", "Ship"]);
    assert!(register(&world.db, &[version("Pay", "1")]).await.unwrap().is_empty(), "nothing is new");
    assert_eq!(register(&world.db, &[version("Pay", "2")]).await.unwrap(), ["Pay"]);
    assert_eq!(kept(&world).await, [row("Pay", "1", false), row("Pay", "2", true), row("Ship", "1", true)]);
    assert_eq!(register(&world.db, &[version("Pay", "1")]).await.unwrap(), ["Pay"], "back to the old one");
    assert_eq!(kept(&world).await, [row("Pay", "1", true), row("Pay", "2", false), row("Ship", "1", true)]);
}

#[tokio::test]
async fn nodes_that_start_at_once_leave_one_current_version_of_each_name() {
    let world = World::real_time().await;
    let starts = (0..16).map(|n| {
        let db = world.db.clone();
        tokio::spawn(async move {
            let hash = (n % 4).to_string();
            register(&db, &[version("Pay", &hash), version("Ship", &hash)]).await
        })
    });
    for start in starts.collect::<Vec<_>>() {
        start.await.unwrap().unwrap();
    }
    let current: Vec<_> = kept(&world).await.into_iter().filter(|(_, _, current)| *current).collect();
    assert_eq!(current.len(), 2, "{current:?}");
    assert_eq!(current[0].1, current[1].1, "those of one node");
}
