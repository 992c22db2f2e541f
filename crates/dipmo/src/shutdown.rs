//! A request to stop that every loop can see and wait for. Loops finish the step they are in.

use std::time::Duration;

use tokio::sync::watch;

/// Asks every [`Shutdown`] made from it to stop, when asked to or when dropped.
#[derive(Debug)]
pub struct ShutdownTrigger(watch::Sender<bool>);

#[derive(Debug, Clone)]
pub struct Shutdown(watch::Receiver<bool>);

impl ShutdownTrigger {
    pub fn new() -> (Self, Shutdown) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), Shutdown(receiver))
    }

    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Shutdown {
    pub fn requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Resolves when a stop is requested.
    pub async fn wait(&mut self) {
        // An error means that the trigger is gone, which is a stop as well.
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    /// Waits for the time to pass or the stop, whichever is first.
    pub async fn wait_up_to(&mut self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.wait()).await;
    }
}
