//! The payloads that the demo sends: sound ones, poisoned ones, and bytes that mean nothing.

use rand::RngExt;
use rand::rngs::StdRng;

use super::plan::{Case, Fate, Flow, Input};
use crate::hits::domain::{Notification, Verdict};
use crate::onboarding::domain::Application;

/// The message that carries a case.
pub(super) fn input(case: &Case, rng: &mut StdRng) -> Input {
    let body = match case.flow {
        Flow::Hit => serde_json::to_vec(&notification(case, rng)),
        Flow::Onboarding => serde_json::to_vec(&application(case, rng)),
    };
    Input {
        flow: case.flow,
        message_id: case.message_id,
        customer: case.customer.clone(),
        case_id: case.id.clone(),
        number: Some(case.number),
        body: body.expect("strings and numbers always have a JSON form"),
        repeats: false,
        garbled: false,
    }
}

fn notification(case: &Case, rng: &mut StdRng) -> Notification {
    let score = match case.fate {
        Fate::Poison => rng.random_range(101..1_000),
        Fate::Qualifies(Verdict::Positive) => rng.random_range(50..=100),
        Fate::Qualifies(Verdict::Negative) => rng.random_range(0..50),
        Fate::Refused | Fate::Behind => rng.random_range(0..=100),
    };
    Notification {
        notification_id: case.id.clone(),
        customer_id: case.customer.clone(),
        list: if case.fate == Fate::Refused { "GOSSIP" } else { ["EU", "OFAC", "UN"][rng.random_range(0..3)] }.into(),
        subject: if case.slow > 0 { format!("slow-{}", case.slow) } else { "J. Doe".into() },
        score,
    }
}

fn application(case: &Case, rng: &mut StdRng) -> Application {
    let country = match case.fate {
        Fate::Poison => "nowhere",
        Fate::Refused => "KP",
        Fate::Qualifies(_) | Fate::Behind => ["NL", "DE", "FR"][rng.random_range(0..3)],
    };
    Application {
        onboarding_id: case.id.clone(),
        customer_id: case.customer.clone(),
        product: ["account", "credit"][rng.random_range(0..2)].into(),
        country: country.into(),
    }
}

/// Cut off, not text at all, or JSON of another shape.
pub(super) fn garbled(rng: &mut StdRng) -> Vec<u8> {
    match rng.random_range(0..3) {
        0 => br#"{"notificationId": "n-1", "customerId": "c-"#.to_vec(),
        1 => (0..24).map(|_| rng.random_range(0x80..=0xff)).collect(),
        _ => br#"{"notificationId": 126, "score": "high"}"#.to_vec(),
    }
}
