//! Notifications and the hits they give rise to. Knows no database, no broker and no process manager.

use std::fmt;

use serde::{Deserialize, Serialize};

const SCORE_MAX: u16 = 100;

/// The lists that hits are opened for; a notification about another one is refused.
const LISTS: [&str; 3] = ["EU", "OFAC", "UN"];

/// Notification 126 of the iHub: a customer resembles a subject of a sanctions list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    pub notification_id: String,
    pub customer_id: String,
    pub list: String,
    pub subject: String,
    /// How much they resemble each other, in percent.
    pub score: u16,
}

/// A resemblance that somebody must judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    pub notification_id: String,
    pub customer_id: String,
    pub subject: String,
    pub score: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Positive,
    Negative,
}

/// The notification contradicts itself: whoever wrote it must correct it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    pub code: &'static str,
    pub why: String,
}

/// The notification is sound, and yet no hit may be opened for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub why: String,
}

impl Notification {
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.score > SCORE_MAX {
            let why = format!("score {} is above {SCORE_MAX}", self.score);
            return Err(Invalid { code: "INVALID_SCORE", why });
        }
        Ok(())
    }
}

impl Hit {
    pub fn open(notification: &Notification) -> Result<Self, Refusal> {
        if !LISTS.contains(&notification.list.as_str()) {
            return Err(Refusal { why: format!("list {} is not watched", notification.list) });
        }
        Ok(Self {
            notification_id: notification.notification_id.clone(),
            customer_id: notification.customer_id.clone(),
            subject: notification.subject.clone(),
            score: notification.score,
        })
    }
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Positive => "positive",
            Verdict::Negative => "negative",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notification(list: &str, score: u16) -> Notification {
        Notification {
            notification_id: "n-1".into(),
            customer_id: "c-1".into(),
            list: list.into(),
            subject: "J. Doe".into(),
            score,
        }
    }

    #[test]
    fn a_score_above_a_hundred_is_invalid() {
        assert_eq!(notification("EU", 100).validate(), Ok(()));
        assert_eq!(notification("EU", 101).validate().unwrap_err().code, "INVALID_SCORE");
    }

    #[test]
    fn a_hit_is_opened_only_for_watched_lists() {
        assert_eq!(Hit::open(&notification("OFAC", 5)).map(|hit| hit.score), Ok(5));
        assert_eq!(Hit::open(&notification("GOSSIP", 5)).unwrap_err().why, "list GOSSIP is not watched");
    }
}
