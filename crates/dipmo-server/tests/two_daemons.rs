//! Two daemons on one database, one of them paused past its lease: the other takes over, and what the
//! paused one wakes up with has no effect.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use world::World;
use world::daemon::{Daemon, free_address, until};

const KEYS: i64 = 8;

/// Every call is one row; a doubled or overtaken effect shows.
const BODY: &str = "insert into effect (key, number) values (message->>'key', (message->>'payload')::bigint);
                    perform pg_sleep(0.002);";

fn start(world: &World, name: &str) -> Daemon {
    let http = free_address();
    let config = format!(
        "idle_in_transaction_max = \"2s\"\n[http]\nlisten = \"{http}\"\n[node]\nname = \"{name}\"\n[relay]\nlease = \"1s\"\n\
         [[consumer]]\nname = \"billing\"\ninternal = [\"Counted\"]\nlease = \"1s\"\nbatch_max = 20\n\
         handler = {{ sql = \"{}.on_number\" }}\n",
        world.schema
    );
    world.configure(&config);
    Daemon::start_as_configured(world, http, &[])
}

async fn count_up(world: &World, from: i64, to: i64) {
    world
        .run_sql(&format!(
            "select outbox_append('INTERNAL', 'Number', 'k' || k, 'Counted', n::text)
             from generate_series({from}, {to} - 1) n, generate_series(1, {KEYS}) k order by n, k"
        ))
        .await;
}

#[tokio::test]
async fn a_daemon_paused_past_its_lease_is_replaced_and_harms_nothing_when_it_wakes() {
    let world = World::new().await;
    world
        .run_sql(&format!(
            "create table effect (n bigint generated always as identity, key text, number bigint);
             create function on_number(message jsonb) returns void language plpgsql set search_path = {} as
             $$ begin {BODY} end $$",
            world.schema
        ))
        .await;
    let one = start(&world, "one");
    one.ready().await;
    let two = start(&world, "two");
    two.ready().await;
    let mut done = 0;
    for round in 0..3 {
        count_up(&world, done, done + 50).await;
        until("some effects are there", async || world.number("select count(*) from effect").await > done * KEYS + 20)
            .await;
        let paused = if round % 2 == 0 { &one } else { &two };
        paused.signal("-STOP");
        done += 50;
        let all = done * KEYS;
        until("the other did the rest", async || world.number("select count(*) from effect").await >= all).await;
        paused.signal("-CONT");
    }
    count_up(&world, done, done + 10).await;
    let all = (done + 10) * KEYS;
    until("both go on", async || world.number("select count(*) from effect").await >= all).await;
    for daemon in [one, two] {
        daemon.signal("-TERM");
        daemon.ended().ok();
    }
    assert_eq!(world.number("select count(*) from effect").await, all, "an effect happened twice");
    let overtaken = "select count(*) from (select number, lag(number) over (partition by key order by n) as before
                     from effect) e where number <> coalesce(before + 1, 0)";
    assert_eq!(world.number(overtaken).await, 0, "an effect was overtaken");
}
