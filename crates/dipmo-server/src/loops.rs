//! The loops of the daemon as one set: named, told to stop together, noticed when one ends.

use std::collections::HashMap;
use std::future::Future;

use dipmo::shutdown::Shutdown;
use tokio::task::{Id, JoinError, JoinSet};
use tracing::error;

#[derive(Debug)]
pub(crate) struct Loops {
    set: JoinSet<()>,
    running: HashMap<Id, String>,
    shutdown: Shutdown,
}

impl Loops {
    pub(crate) fn new(shutdown: Shutdown) -> Self {
        Self { set: JoinSet::new(), running: HashMap::new(), shutdown }
    }

    pub(crate) fn spawn<F>(&mut self, name: impl Into<String>, body: impl FnOnce(Shutdown) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let handle = self.set.spawn(body(self.shutdown.clone()));
        self.running.insert(handle.id(), name.into());
    }

    /// Those that still run, in order.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.running.values().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// The name of the first loop that ends.
    pub(crate) async fn first_end(&mut self) -> String {
        match self.set.join_next_with_id().await {
            Some(ended) => self.note(ended),
            None => "every loop".to_owned(),
        }
    }

    pub(crate) async fn all_end(&mut self) {
        while let Some(ended) = self.set.join_next_with_id().await {
            self.note(ended);
        }
    }

    fn note(&mut self, ended: Result<(Id, ()), JoinError>) -> String {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let name = self.running.remove(&id).unwrap_or_default();
        if let Err(error) = ended {
            error!(name, %error, "a loop failed");
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use dipmo::shutdown::ShutdownTrigger;

    use super::*;

    #[tokio::test]
    async fn a_loop_that_panics_is_named_and_the_others_end_when_told() {
        let (trigger, shutdown) = ShutdownTrigger::new();
        let mut loops = Loops::new(shutdown);
        loops.spawn("steady", |mut shutdown| async move { shutdown.wait().await });
        loops.spawn("broken", |_| async { panic!("on purpose") });
        assert_eq!(loops.first_end().await, "broken");
        assert_eq!(loops.names(), ["steady"]);
        trigger.stop();
        loops.all_end().await;
        assert!(loops.names().is_empty());
    }
}
