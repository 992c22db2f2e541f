//! Which loops of the daemon run, for /readyz.

use std::sync::Mutex;

#[derive(Debug, Default)]
pub(crate) struct Health {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    started: bool,
    draining: bool,
    ended: Vec<String>,
}

impl Health {
    pub(crate) fn started(&self) {
        self.lock().started = true;
    }

    pub(crate) fn draining(&self) {
        self.lock().draining = true;
    }

    pub(crate) fn ended(&self, name: &str) {
        self.lock().ended.push(name.to_owned());
    }

    /// Why no work should be sent here; empty when it may.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let state = self.lock();
        let mut reasons: Vec<String> = state.ended.iter().map(|name| format!("{name} has ended")).collect();
        if !state.started {
            reasons.push("starting".to_owned());
        }
        if state.draining {
            reasons.push("draining".to_owned());
        }
        reasons
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the health")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_between_start_and_drain_with_every_loop_running() {
        let health = Health::default();
        assert_eq!(health.reasons(), ["starting"]);
        health.started();
        assert!(health.reasons().is_empty());
        health.ended("relay");
        health.draining();
        assert_eq!(health.reasons(), ["relay has ended", "draining"]);
    }
}
