//! When the relay looks again: woken by writers while little happens, by its own clock under load.
//!
//! NOTIFY serialises commits, so under load the writers are told not to notify and the relay polls at its
//! minimum interval. All relays share that flag; a wrong one costs a fallback interval and nothing else.

use std::time::{Duration, Instant};

/// New ids are counted over this time.
const WINDOW: Duration = Duration::from_millis(100);
/// This many in a window mean load: notifying would cost more.
const BUSY_IDS: u64 = 60;
/// A wait of at least this long that brought less than a load's worth was for nothing.
const WAIT_MIN: Duration = Duration::from_millis(5);
/// Fewer than this in each of [`CALM_WINDOWS`] windows mean that polling costs more.
const CALM_IDS: u64 = 40;
const CALM_WINDOWS: u32 = 5;

#[derive(Debug)]
pub(crate) struct Pace {
    busy: bool,
    window: Instant,
    /// New in the window so far.
    ids: u64,
    calm: u32,
    /// The last window, or this one already, had a load's worth.
    loaded: bool,
    polled_at: Instant,
}

/// What made the relay look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A writer, or something that was under way.
    Signal,
    /// Nobody: the fallback interval had passed.
    Fallback,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self { busy: false, window: now, ids: 0, calm: 0, loaded: false, polled_at: now }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// There is so much that waiting for company pays.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// Notes a poll that found this many new ids. Returns true when the mode changed and the writers
    /// should be told.
    pub(crate) fn polled(&mut self, ids: u64, woken: Woken, now: Instant) -> bool {
        let (was, moved) = (self.busy, ids > 0);
        let waited = now.duration_since(std::mem::replace(&mut self.polled_at, now));
        if self.loaded && waited >= WAIT_MIN && is_little(ids, waited) {
            // The load has ended: whoever comes now is served at once.
            (self.loaded, self.ids) = (false, 0);
        }
        self.ids += ids;
        self.loaded |= self.ids >= BUSY_IDS;
        // New rows that nobody announced: another relay has told the writers to be silent.
        if self.loaded || (moved && woken == Woken::Fallback) {
            self.busy = true;
            self.calm = 0;
        }
        if now.duration_since(self.window) >= WINDOW {
            let calm = self.ids < CALM_IDS;
            self.calm = if calm { self.calm + 1 } else { 0 };
            self.loaded &= !calm;
            if self.calm >= CALM_WINDOWS {
                self.busy = false;
            }
            (self.ids, self.window) = (0, now);
        }
        self.busy != was
    }
}

/// Less than load would have brought in this time.
fn is_little(ids: u64, waited: Duration) -> bool {
    u128::from(ids) * WINDOW.as_micros() < u128::from(BUSY_IDS) * waited.as_micros()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_trickle_stays_quiet_and_a_stream_becomes_busy() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for n in 0..200 {
            assert!(!pace.polled(1, Woken::Signal, start + MS * 5 * n), "200 a second are a trickle");
        }
        let later = start + MS * 1_000;
        let changed = (0..100).filter(|n| pace.polled(1, Woken::Signal, later + MS * *n)).count();
        assert!(pace.is_busy() && changed == 1);
    }

    #[test]
    fn many_ids_in_few_polls_are_load_too() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(pace.polled(150, Woken::Signal, start), "each insert would notify");
        assert!(pace.is_loaded());
        pace.polled(0, Woken::Signal, start + WINDOW);
        pace.polled(0, Woken::Signal, start + WINDOW * 2);
        assert!(pace.is_busy() && !pace.is_loaded(), "calm for a moment: nobody waits for company");
    }

    #[test]
    fn nobody_waits_for_company_once_the_load_has_ended() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for n in 0..10 {
            pace.polled(100, Woken::Signal, start + MS * 10 * n);
            assert!(pace.is_loaded());
        }
        pace.polled(50, Woken::Signal, start + MS * 92);
        assert!(pace.is_loaded(), "a poll that did not wait says nothing");
        pace.polled(1, Woken::Signal, start + MS * 102);
        assert!(!pace.is_loaded() && pace.is_busy(), "the first that waited alone");
    }

    #[test]
    fn it_calms_down_only_after_a_while() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(pace.polled(1, Woken::Fallback, start), "rows that nobody announced");
        let calm = (1..).find(|n| pace.polled(0, Woken::Signal, start + MS * 2 * *n)).unwrap_or_default();
        assert!(calm * 2 >= 500 && calm * 2 <= 520, "{calm}");
        assert!(!pace.is_busy());
    }
}
