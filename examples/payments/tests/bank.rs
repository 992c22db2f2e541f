//! The layer before the bank: what its failures become, and that nothing stays booked that nobody paid for.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::time::Duration;

use payments::bank::{self, Bank, Behaviour, Script};
use payments::context::Context;
use payments::demo::start_day;
use payments::fx::{BankClient, BreakerOptions, ClientOptions, Order, Outcome};
use support::World;
use uuid::Uuid;

fn order(buy: &str) -> Order {
    Order { sell: "USD".to_owned(), buy: buy.to_owned(), amount: 100 }
}

fn client(bank: &Bank) -> BankClient {
    let timeout = Duration::from_millis(200);
    BankClient::new(ClientOptions { timeout, ..ClientOptions::new(bank.address()) })
}

/// The script for calls up to this one, then a bank that works.
fn hangs_at_first(call: u64) -> Behaviour {
    if call <= 2 { Behaviour::DoAndHang } else { bank::well(call) }
}

fn always_fails(_: u64) -> Behaviour {
    Behaviour::Fail
}

/// Books and says nothing until the saga has given up, then works.
fn silent_for_long(call: u64) -> Behaviour {
    if call <= 13 { Behaviour::DoAndFail } else { bank::well(call) }
}

#[tokio::test]
async fn asking_again_after_silence_books_once() {
    let bank = Bank::open(hangs_at_first).await.unwrap();
    let booked = client(&bank).book("key", &order("EUR")).await;
    assert!(matches!(booked, Outcome::Done(_)), "{booked:?}");
    assert_eq!((bank.calls(), bank.open_contracts()), (3, vec!["key".to_owned()]));
}

#[tokio::test]
async fn what_the_bank_did_not_say_is_unknown_and_what_it_was_not_asked_is_not() {
    let bank = Bank::open(always_fails).await.unwrap();
    let failing = client(&bank);
    assert!(matches!(failing.book("key", &order("EUR")).await, Outcome::Unknown(_)));
    let nobody = BankClient::new(ClientOptions::new("127.0.0.1:1")).book("key", &order("EUR")).await;
    assert!(matches!(&nobody, Outcome::NotAsked(_)), "nobody listens there: {nobody:?}");
    let open = Bank::open(bank::well).await.unwrap();
    let refused = client(&open).book("key", &order("XXX")).await;
    assert!(matches!(&refused, Outcome::Refused { code, .. } if code == "NO_MARKET"), "{refused:?}");
    assert_eq!(open.calls(), 1, "what was refused is not asked again");
}

#[tokio::test]
async fn a_bank_that_fails_again_and_again_is_left_in_peace() {
    let bank = Bank::open(always_fails).await.unwrap();
    let breaker = BreakerOptions { failures_max: 3, rest: Duration::from_secs(3_600) };
    let client = BankClient::new(ClientOptions { breaker, ..ClientOptions::new(bank.address()) });
    assert!(matches!(client.book("a", &order("EUR")).await, Outcome::Unknown(_)));
    assert!(matches!(client.book("b", &order("EUR")).await, Outcome::NotAsked(_)));
    assert_eq!(bank.calls(), 3);
}

#[tokio::test]
async fn what_was_cancelled_cannot_be_booked_late() {
    let bank = Bank::open(bank::well).await.unwrap();
    let client = client(&bank);
    assert!(matches!(client.cancel("key").await, Outcome::Done(_)));
    let late = client.book("key", &order("EUR")).await;
    assert!(matches!(&late, Outcome::Refused { code, .. } if code == "CANCELLED"), "{late:?}");
    assert!(bank.open_contracts().is_empty());
}

#[tokio::test]
async fn a_contract_that_nobody_heard_of_is_cancelled_when_the_payment_is_given_up() {
    // Payment 4 is the only foreign one.
    let mut world = World::new(5, silent_for_long as Script).await;
    start_day(&world.core, Uuid::now_v7()).await.unwrap();
    world.run_to_the_end(async |_| {}).await;
    let facts = world.check_the_books(0).await;
    assert_eq!(facts.tally().get("BANK_SILENT"), Some(&1), "{:?}", facts.tally());
    assert!(world.bank.open_contracts().is_empty(), "the bank had booked it, and was told to cancel it");
    assert!(world.bank.calls() > 13, "only after many tries: {}", world.bank.calls());
}

#[tokio::test]
async fn a_refusal_whose_answer_was_lost_keeps_its_code_and_the_bank_is_not_asked_again() {
    // Payment 28 is the only one that the bank refuses.
    let mut world = World::new(28, bank::well).await;
    let refused = "insert into domain.fx_contract (payment_id, idempotency_key, status, refusal)
                   values ('P-00028', 'of the process that died', 'REFUSED', 'NO_MARKET')";
    let refused = world.platform.domain(Context::Fx).sql(refused);
    world.core.client().await.unwrap().batch_execute(&refused).await.unwrap();
    start_day(&world.core, Uuid::now_v7()).await.unwrap();
    world.run_to_the_end(async |_| {}).await;
    let facts = world.check_the_books(world.poison()).await;
    assert_eq!(facts.tally().get("FX_NO_MARKET"), Some(&1), "{:?}", facts.tally());
    assert_eq!(world.bank.calls(), 6, "for the other foreign payments");
}
