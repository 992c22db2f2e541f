//! How long what is kept, and the rule that the dedupe window must cover every way back.

use std::time::Duration;

use crate::backoff::RetryPolicy;
use crate::error::{Error, Result};

const DAY: Duration = Duration::from_secs(86_400);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpkeepOptions {
    /// The name under which the heartbeat is written.
    pub node: String,
    pub gauges_every: Duration,
    pub chores_every: Duration,
    /// How many days ahead partitions are made; upkeep may be down for that long.
    pub partitions_ahead: i32,
    pub retention: Retention,
}

/// Ages after which rows go. What is unresolved stays in any case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    pub inbox: Duration,
    pub outbox: Duration,
    /// `None` keeps the journal for ever.
    pub journal: Option<Duration>,
    /// How long a message is remembered, so that its repetition has no effect.
    pub dedupe: Duration,
    /// For how long operators may have messages sent again.
    pub redrive: Duration,
    /// The longest retention of the topics that are read.
    pub broker: Duration,
    /// The longest a consumer retries a message by itself.
    pub retry_span: Duration,
}

impl Default for UpkeepOptions {
    fn default() -> Self {
        Self {
            node: "dipmo".to_owned(),
            gauges_every: Duration::from_secs(15),
            chores_every: Duration::from_secs(600),
            partitions_ahead: 3,
            retention: Retention::default(),
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            inbox: 14 * DAY,
            outbox: 14 * DAY,
            journal: None,
            dedupe: 35 * DAY,
            redrive: 14 * DAY,
            broker: 7 * DAY,
            retry_span: RetryPolicy::default().span(),
        }
    }
}

impl UpkeepOptions {
    pub fn validate(&self) -> Result<()> {
        if !(1..=30).contains(&self.partitions_ahead) {
            return Err(Error::invalid("partitions_ahead must be 1 to 30 days"));
        }
        if self.gauges_every < Duration::from_secs(1) || self.chores_every < Duration::from_secs(1) {
            return Err(Error::invalid("upkeep must wait at least 1 s between its steps"));
        }
        self.retention.validate()
    }
}

impl Retention {
    pub fn validate(&self) -> Result<()> {
        let kept = [("inbox", Some(self.inbox)), ("outbox", Some(self.outbox)), ("journal", self.journal)];
        if let Some((name, _)) = kept.iter().find(|(_, keep)| keep.is_some_and(|keep| keep < DAY)) {
            return Err(Error::invalid(format!("retention.{name} must be at least 1d: partitions are whole days")));
        }
        let needed = self.retry_span.saturating_add(self.redrive).saturating_add(self.broker);
        if self.dedupe < needed {
            return Err(Error::invalid(format!(
                "retention.dedupe = {} is too short: a message can come back after retries {} + redrive {} + broker \
                 retention {} = {}, and would then have its effect a second time",
                human(self.dedupe),
                human(self.retry_span),
                human(self.redrive),
                human(self.broker),
                human(needed)
            )));
        }
        Ok(())
    }
}

/// `14d`, `8m30s`: the two largest units that are not zero.
fn human(duration: Duration) -> String {
    let mut rest = duration.as_secs();
    let mut parts = Vec::new();
    for (unit, seconds) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
        if rest >= seconds {
            parts.push(format!("{}{unit}", rest / seconds));
            rest %= seconds;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dedupe_window_shorter_than_every_way_back_is_refused_with_the_sum() {
        let mut retention = Retention { retry_span: Duration::from_secs(515), ..Retention::default() };
        assert!(retention.validate().is_ok());
        retention.dedupe = 21 * DAY;
        let why = retention.validate().unwrap_err().to_string();
        assert!(why.contains("retention.dedupe = 21d is too short"), "{why}");
        assert!(why.contains("8m35s + redrive 14d + broker retention 7d = 21d8m35s"), "{why}");
        retention.dedupe = 21 * DAY + Duration::from_secs(515);
        assert!(retention.validate().is_ok());
    }

    #[test]
    fn less_than_a_day_cannot_be_kept() {
        let options = UpkeepOptions {
            retention: Retention { outbox: Duration::from_secs(60), ..Retention::default() },
            ..UpkeepOptions::default()
        };
        assert!(options.validate().unwrap_err().to_string().contains("retention.outbox"));
    }
}
