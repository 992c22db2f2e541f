//! Slots and publications of a real server, and what is said about its settings.

use super::super::test_world::World;
use super::*;

#[tokio::test]
async fn a_slot_is_made_seen_and_dropped() {
    let world = World::new().await;
    let name = format!("{}_b", world.slot);
    assert_eq!(slot_status(&world.db, &name).await.unwrap(), None);
    let from = create_slot(&world.db, &name).await.unwrap();
    assert_eq!(create_slot(&world.db, &name).await.unwrap_err().kind(), ErrorKind::Conflict);
    let status = slot_status(&world.db, &name).await.unwrap().unwrap();
    assert_eq!((status.plugin.as_deref(), status.active, status.active_pid), (Some("pgoutput"), false, None));
    assert_eq!((status.confirmed_flush_lsn, status.wal_status.as_deref()), (Some(from), Some("reserved")));
    assert!(status.restart_lsn <= Some(from) && status.lag_bytes >= Some(0) && status.kept_bytes >= status.lag_bytes);
    assert!(insert_lsn(&world.db).await.unwrap() >= from);
    drop_slot(&world.db, &name).await.unwrap();
    assert_eq!(drop_slot(&world.db, &name).await.unwrap_err().kind(), ErrorKind::NotFound);
    let stream = world.open().await;
    let in_use = drop_slot(&world.db, &world.slot).await.unwrap_err();
    assert_eq!(in_use.kind(), ErrorKind::Conflict, "{in_use}");
    assert!(slot_status(&world.db, &world.slot).await.unwrap().unwrap().active_pid.is_some());
    world.end(stream).await;
}

#[tokio::test]
async fn a_publication_is_made_once_and_takes_further_tables() {
    let world = World::new().await;
    world.execute("drop publication if exists \"dipmo_outbox\"").await;
    world.execute(&format!("drop publication {}", publication_name(world.db.schema()))).await;
    world.execute("create table dipmo.\"Foreign\" (id integer)").await;
    let foreign = [ForeignTable::new(world.db.schema(), "Foreign")];
    let (one, other) = tokio::join!(ensure_publication(&world.db, &[]), ensure_publication(&world.db, &foreign));
    assert!(one.unwrap() != other.unwrap(), "one of the two makes it");
    assert!(!ensure_publication(&world.db, &foreign).await.unwrap());
    let client = world.db.client().await.unwrap();
    let published = "select tablename::text from pg_publication_tables where pubname = $1 order by 1";
    let rows = client.query(published, &[&publication_name(world.db.schema())]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ["Foreign", "outbox"]);
    drop_slot(&world.db, &world.slot).await.unwrap();
}

#[tokio::test]
async fn the_settings_of_the_test_server_suffice() {
    let world = World::new().await;
    let settings = wal_settings(&world.db).await.unwrap();
    assert_eq!(settings.refusal(), None);
    let status = slot_status(&world.db, &world.slot).await.unwrap();
    let findings = check(&settings, &world.slot, status.as_ref());
    assert!(findings.iter().all(|finding| finding.starts_with("max_slot_wal_keep_size is -1")), "{findings:?}");
    drop_slot(&world.db, &world.slot).await.unwrap();
}

fn sound() -> (WalSettings, SlotStatus) {
    let settings = WalSettings {
        server_version: 150_000,
        wal_level: "logical".to_owned(),
        max_slot_wal_keep_size: "10GB".to_owned(),
        slots_free: 1,
        senders_free: 1,
        role: "app".to_owned(),
        role_may_replicate: true,
    };
    let slot = SlotStatus {
        plugin: Some("pgoutput".to_owned()),
        database: Some("app".to_owned()),
        active: true,
        active_pid: Some(1),
        restart_lsn: Some(Lsn(1)),
        confirmed_flush_lsn: Some(Lsn(1)),
        wal_status: Some("reserved".to_owned()),
        safe_wal_size: None,
        kept_bytes: Some(2),
        lag_bytes: Some(1),
    };
    (settings, slot)
}

#[test]
fn each_shortcoming_is_named_with_what_to_do() {
    let (settings, slot) = sound();
    assert_eq!(check(&settings, "s", Some(&slot)), Vec::<String>::new());
    assert_eq!(check(&settings, "s", None), Vec::<String>::new());
    let of = |settings: WalSettings, slot: Option<SlotStatus>| check(&settings, "s", slot.as_ref()).join("\n");
    let level = of(WalSettings { wal_level: "replica".to_owned(), ..settings.clone() }, None);
    assert!(level.contains("wal_level = logical") && level.contains("restart"), "{level}");
    let role = of(WalSettings { role_may_replicate: false, ..settings.clone() }, None);
    assert!(role.contains("alter role app replication"), "{role}");
    let endless = of(WalSettings { max_slot_wal_keep_size: "-1".to_owned(), ..settings.clone() }, None);
    assert!(endless.contains("max_slot_wal_keep_size"), "{endless}");
    let none_free = WalSettings { slots_free: 0, senders_free: 0, ..settings.clone() };
    assert!(of(none_free.clone(), None).contains("max_replication_slots"));
    assert!(of(none_free.clone(), None).contains("max_wal_senders"));
    assert_eq!(of(none_free, Some(slot.clone())), "", "what it has, it need not find");
    for (status, word) in [("lost", "is lost"), ("unreserved", "about to be lost"), ("extended", "keeps more log")] {
        let found = of(settings.clone(), Some(SlotStatus { wal_status: Some(status.to_owned()), ..slot.clone() }));
        assert!(found.contains(word), "{found}");
    }
    let other = of(settings, Some(SlotStatus { plugin: Some("wal2json".to_owned()), ..slot }));
    assert!(other.contains("pgoutput"), "{other}");
}

#[test]
fn a_slot_is_named_after_its_schema() {
    assert_eq!(default_slot_name("dipmo"), "dipmo_dipmo_outbox");
    assert_eq!(default_slot_name("Sales-1"), "dipmo_sales_1_outbox");
    let long = default_slot_name(&"x".repeat(100));
    assert_eq!((long.len(), long.ends_with("_outbox")), (63, true));
}
