//! A signal between the loops of one process. Every listener hears that it was fired since it last
//! looked, however late it looks; several firings count as one.

use tokio::sync::watch;

/// The firing side; clones fire the same signal.
#[derive(Debug, Clone, Default)]
pub struct Wake(watch::Sender<()>);

/// The hearing side.
#[derive(Debug)]
pub struct WakeListener {
    receiver: watch::Receiver<()>,
    // Keeps the signal alive: a listener whose firing side is gone waits for ever, it does not spin.
    _wake: Wake,
}

impl Wake {
    pub fn fire(&self) {
        self.0.send_replace(());
    }

    pub fn listen(&self) -> WakeListener {
        WakeListener { receiver: self.0.subscribe(), _wake: self.clone() }
    }
}

impl WakeListener {
    /// Resolves at the next firing, or at once if there was one since the last time.
    pub async fn fired(&mut self) {
        self.receiver.changed().await.expect("the listener itself keeps the sender alive");
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn every_listener_hears_a_firing_once_even_if_it_looks_late() {
        let wake = Wake::default();
        let (mut one, mut two) = (wake.listen(), wake.listen());
        assert!(one.fired().now_or_never().is_none());
        wake.fire();
        wake.fire();
        assert!(one.fired().now_or_never().is_some());
        assert!(one.fired().now_or_never().is_none());
        assert!(two.fired().now_or_never().is_some());
    }
}
