//! A circuit breaker: when a bank fails again and again it is left in peace for a while, then tried once.

use std::sync::Mutex;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub struct BreakerOptions {
    /// So many failures in a row open it.
    pub failures_max: u32,
    /// For so long nothing is let through; then one call is, to see.
    pub rest: Duration,
}

impl Default for BreakerOptions {
    fn default() -> Self {
        Self { failures_max: 5, rest: Duration::from_millis(200) }
    }
}

#[derive(Debug)]
pub struct Breaker {
    options: BreakerOptions,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        until: Instant,
    },
    /// One call is under way to see whether the bank is back.
    Trying,
}

impl Breaker {
    pub fn new(options: BreakerOptions) -> Self {
        Self { options, state: Mutex::new(State::Closed { failures: 0 }) }
    }

    /// Whether a call may be made now; whoever makes it says how it went.
    pub fn lets_through(&self, now: Instant) -> bool {
        let mut state = self.lock();
        match *state {
            State::Closed { .. } => true,
            State::Open { until } if now >= until => {
                *state = State::Trying;
                true
            }
            State::Open { .. } | State::Trying => false,
        }
    }

    pub fn note(&self, went_well: bool, now: Instant) {
        let mut state = self.lock();
        let open = State::Open { until: now + self.options.rest };
        *state = match (*state, went_well) {
            (_, true) => State::Closed { failures: 0 },
            (State::Closed { failures }, false) if failures + 1 < self.options.failures_max => {
                State::Closed { failures: failures + 1 }
            }
            // A call that began before it opened does not prolong the rest.
            (State::Open { until }, false) => State::Open { until },
            (State::Closed { .. } | State::Trying, false) => open,
        };
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the state")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_try_after_its_rest() {
        let breaker = Breaker::new(BreakerOptions { failures_max: 2, rest: Duration::from_secs(1) });
        let begin = Instant::now();
        breaker.note(false, begin);
        breaker.note(true, begin);
        breaker.note(false, begin);
        assert!(breaker.lets_through(begin), "success counts the failures from nothing again");
        breaker.note(false, begin);
        assert!(!breaker.lets_through(begin));
        let later = begin + Duration::from_secs(1);
        assert!(breaker.lets_through(later), "one may try");
        assert!(!breaker.lets_through(later), "and only one");
        breaker.note(false, later);
        assert!(!breaker.lets_through(later));
        assert!(breaker.lets_through(later + Duration::from_secs(1)));
        breaker.note(true, later);
        assert!(breaker.lets_through(later));
    }
}
