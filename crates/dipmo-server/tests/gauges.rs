//! The gauges that are read from the database, as Prometheus sees them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use dipmo::store::postgres::{Db, DbOptions};
use dipmo::upkeep::{Upkeep, UpkeepOptions};
use metrics_exporter_prometheus::PrometheusBuilder;
use world::World;

#[tokio::test]
async fn gauges_show_what_is_open_and_fall_to_zero_when_it_is_gone() {
    let world = World::new().await;
    world.parked_key("k").await;
    world.unsent("k", "DEAD").await;
    let process = "insert into process (id, type, business_key, state, status, version, data)
                   values (gen_random_uuid(), 'kyc', 'c', 'REVIEW', 'RUNNING', 1, '{}')";
    world.run_sql(process).await;
    world.run_sql("insert into saga_definition (name, hash, body, current) values ('kyc', 'h', '{}', true)").await;
    world
        .run_sql("insert into command_dlq (command_id, parked_by, attempts) values (gen_random_uuid(), 'dipmo', 3)")
        .await;
    world.run_sql("insert into node (name, role, seen_at) values ('n', 'relay', now() - interval '700 seconds')").await;
    let recorder = PrometheusBuilder::new().build_recorder();
    // For this thread alone, on which the whole test runs.
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (schema, application_name) = (world.schema.clone(), world.schema.clone());
    let options = DbOptions { schema, application_name, ..DbOptions::new(world.url()) };
    let upkeep = Upkeep::new(Db::open(options).unwrap(), UpkeepOptions::default()).unwrap();
    upkeep.measure().await.unwrap();
    let shown = recorder.handle().render();
    for line in [
        "dipmo_inbox_depth{consumer=\"billing\",state=\"DEAD\"} 1",
        "dipmo_inbox_depth{consumer=\"billing\",state=\"PARKED\"} 1",
        "dipmo_inbox_depth{consumer=\"billing\",state=\"RECEIVED\"} 0",
        "dipmo_parked_keys{consumer=\"billing\"} 1",
        "dipmo_outbox_pending{lane=\"KAFKA\"} 1",
        "dipmo_outbox_exceptions{lane=\"KAFKA\",state=\"DEAD\"} 1",
        "dipmo_process_instances{type=\"kyc\",status=\"RUNNING\",state=\"REVIEW\"} 1",
        "dipmo_relay_heartbeat_age_seconds 7",
        "saga_active_total{type=\"kyc\"} 1",
        "dlq_depth 1",
        "queue_depth{consumer=\"billing\"} 0",
    ] {
        assert!(shown.contains(line), "{line} is missing in:\n{shown}");
    }
    world.run_sql("update process set state = 'DONE', status = 'SUCCEEDED'; delete from outbox_exception").await;
    upkeep.measure().await.unwrap();
    let shown = recorder.handle().render();
    for line in [
        "dipmo_process_instances{type=\"kyc\",status=\"RUNNING\",state=\"REVIEW\"} 0",
        "dipmo_process_instances{type=\"kyc\",status=\"SUCCEEDED\",state=\"DONE\"} 1",
        "dipmo_outbox_exceptions{lane=\"KAFKA\",state=\"DEAD\"} 0",
        "saga_active_total{type=\"kyc\"} 0",
    ] {
        assert!(shown.contains(line), "{line} is missing in:\n{shown}");
    }
}

#[tokio::test]
async fn a_slot_shows_whether_it_is_read_and_what_it_keeps_and_falls_to_zero_when_it_is_gone() {
    let world = World::new().await;
    let slot = format!("dipmo_{}_outbox", world.schema);
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (schema, application_name) = (world.schema.clone(), world.schema.clone());
    let options = DbOptions { schema, application_name, ..DbOptions::new(world.url()) };
    let upkeep = Upkeep::new(Db::open(options).unwrap(), UpkeepOptions::default()).unwrap();
    let shown = async |name: &str| {
        upkeep.measure().await.unwrap();
        let start = format!("{name}{{slot=\"{slot}\"}} ");
        let text = recorder.handle().render();
        text.lines().find_map(|line| line.strip_prefix(&start).map(|value| value.parse::<f64>().unwrap()))
    };
    assert_eq!(shown("dipmo_relay_slot_kept_bytes").await, None, "the table is read: there is no slot");
    world.run_sql(&format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await;
    world.run_sql("insert into consumer (name) values ('writes WAL')").await;
    assert!(shown("dipmo_relay_slot_kept_bytes").await > Some(0.0));
    assert_eq!(shown("dipmo_relay_slot_active").await, Some(0.0));
    world.run_sql(&format!("select pg_drop_replication_slot('{slot}')")).await;
    assert_eq!(shown("dipmo_relay_slot_kept_bytes").await, Some(0.0));
}
