//! How long a failed attempt waits before the next one: min(300 s, 2^attempt) plus jitter.

use std::time::Duration;

use rand::RngExt;

const DELAY_MAX: Duration = Duration::from_secs(300);
/// Spreads the retries of messages that failed together.
const JITTER_MAX: Duration = Duration::from_secs(1);

/// Retry rules of a consumer or a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// After this many attempts the message is DEAD.
    pub attempts_max: u32,
    pub delay_max: Duration,
    pub jitter_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts_max: 8, delay_max: DELAY_MAX, jitter_max: JITTER_MAX }
    }
}

impl RetryPolicy {
    /// The delay after the `attempt`-th attempt failed, counted from one; `None` when they are used up.
    pub fn delay_after(&self, attempt: u32) -> Option<Duration> {
        (attempt < self.attempts_max).then(|| self.delay(attempt))
    }

    /// The delay alone, for work that never gives up.
    pub fn delay(&self, attempt: u32) -> Duration {
        self.delay_with(attempt, rand::rng().random::<f64>())
    }

    /// The delay with a given share of the jitter, from 0 to 1, for callers that must be pure.
    pub(crate) fn delay_with(&self, attempt: u32, share: f64) -> Duration {
        let base = Duration::from_secs(1 << attempt.min(16)).min(self.delay_max);
        base + self.jitter_max.mul_f64(share.clamp(0.0, 1.0))
    }

    /// The longest a message can be under way by itself: every delay at its largest.
    pub fn span(&self) -> Duration {
        (1..self.attempts_max).map(|n| Duration::from_secs(1 << n.min(16)).min(self.delay_max) + self.jitter_max).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap_and_end_with_the_attempts() {
        let policy = RetryPolicy { attempts_max: 12, jitter_max: Duration::ZERO, ..RetryPolicy::default() };
        let delays: Vec<u64> = (1..12).filter_map(|n| policy.delay_after(n)).map(|d| d.as_secs()).collect();
        assert_eq!(delays, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!(policy.delay_after(12), None);
    }

    #[test]
    fn jitter_only_adds() {
        let policy = RetryPolicy::default();
        for _ in 0..100 {
            let delay = policy.delay(1);
            assert!(delay >= Duration::from_secs(2) && delay <= Duration::from_secs(3), "{delay:?}");
        }
    }
}
