//! Stops asking a destination that does not answer, and probes it now and then.

use std::time::{Duration, Instant};

/// Opens after this many batches in a row of which nothing arrived.
const FAILURES_MAX: u32 = 2;

/// When a destination that is away is asked again.
#[derive(Debug, Clone)]
pub(crate) struct Breaker {
    failures: u32,
    until: Option<Instant>,
    probe_after: Duration,
    probe_after_max: Duration,
}

impl Breaker {
    /// The first probe comes after `probe_after`, each further one after twice the time, up to `max`.
    pub(crate) fn new(probe_after: Duration, max: Duration) -> Self {
        Self { failures: 0, until: None, probe_after, probe_after_max: max }
    }

    /// False while nothing may be sent; once the time has passed, one batch may go as a probe.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.until.is_some()
    }

    /// When the next probe is due, while open.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    pub(crate) fn answered(&mut self) {
        self.failures = 0;
        self.until = None;
    }

    /// Returns true when this failure opened it.
    pub(crate) fn silent(&mut self, now: Instant) -> bool {
        let was_open = self.is_open();
        self.failures += 1;
        if self.failures >= FAILURES_MAX {
            let doublings = (self.failures - FAILURES_MAX).min(16);
            let delay = self.probe_after.saturating_mul(1 << doublings).min(self.probe_after_max);
            self.until = Some(now + delay);
        }
        self.is_open() && !was_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_probes_ever_later_and_closes_on_an_answer() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut breaker = Breaker::new(second, 4 * second);
        assert!(!breaker.silent(start) && breaker.allows(start));
        assert!(breaker.silent(start), "the second failure opens it");
        assert!(!breaker.allows(start) && breaker.allows(start + second));
        for wait in [2, 4, 4] {
            assert!(!breaker.silent(start));
            assert_eq!(breaker.until(), Some(start + wait * second));
        }
        breaker.answered();
        assert!(breaker.allows(start) && !breaker.is_open());
        assert!(!breaker.silent(start), "the count begins anew");
    }
}
