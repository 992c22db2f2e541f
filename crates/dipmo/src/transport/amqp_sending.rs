//! One call of the AMQP publisher: which rows are on their way, and what became of the others.

use std::collections::{HashSet, VecDeque};

use super::amqp::AmqpOptions;
use super::amqp_message::outgoing;
use super::amqp_wire::{Answer, Connection, Trouble};
use super::{Outcome, Outgoing, Refusal};

/// The rows of one call, and what is known of each.
pub(super) struct Sending<'a> {
    rows: &'a [Outgoing<'a>],
    told: Vec<Option<Outcome>>,
    flying: VecDeque<(usize, Answer)>,
    /// Queue and key of rows that failed.
    failed: HashSet<(&'a str, &'a str)>,
}

impl<'a> Sending<'a> {
    pub(super) fn new(rows: &'a [Outgoing<'a>]) -> Self {
        Self { rows, told: vec![None; rows.len()], flying: VecDeque::new(), failed: HashSet::new() }
    }

    pub(super) fn untouched(&self) -> bool {
        self.told.iter().all(Option::is_none)
    }

    fn tell(&mut self, n: usize, outcome: Outcome) {
        if outcome != Outcome::Done {
            self.failed.insert((self.rows[n].topic, self.rows[n].key));
        }
        self.told[n] = Some(outcome);
    }

    /// Attaches to the queues before anything is on its way, because a queue that is refused costs the
    /// connection. False when one was.
    pub(super) async fn attach(&mut self, connection: &mut Connection) -> Result<bool, Refusal> {
        let mut seen = HashSet::new();
        for (n, row) in self.rows.iter().enumerate() {
            if self.told[n].is_some() || !seen.insert(row.topic) {
                continue;
            }
            match connection.attach(row.topic).await {
                Ok(()) => {}
                Err(Trouble::Row(outcome)) => {
                    self.refuse_queue(row.topic, &outcome);
                    return Ok(false);
                }
                Err(Trouble::Connection(refusal)) => return Err(refusal),
            }
        }
        Ok(true)
    }

    fn refuse_queue(&mut self, queue: &str, outcome: &Outcome) {
        for n in 0..self.rows.len() {
            let row = &self.rows[n];
            if row.topic == queue && self.told[n].is_none() {
                let behind = self.failed.contains(&(row.topic, row.key));
                self.tell(n, if behind { Outcome::Held } else { outcome.clone() });
            }
        }
    }

    /// Sends whatever has no outcome yet. An error is the connection's.
    pub(super) async fn send(&mut self, connection: &mut Connection, options: &AmqpOptions) -> Result<(), Refusal> {
        for (n, row) in self.rows.iter().enumerate() {
            if self.told[n].is_some() {
                continue;
            }
            while self.flying.len() >= options.window {
                self.land(connection).await?;
            }
            if self.failed.contains(&(row.topic, row.key)) {
                self.tell(n, Outcome::Held);
                continue;
            }
            match connection.send(row.topic, outgoing(row, options.profile)).await {
                Ok(answer) => self.flying.push_back((n, answer)),
                Err(Trouble::Row(outcome)) => self.tell(n, outcome),
                Err(Trouble::Connection(refusal)) => return Err(refusal),
            }
        }
        while !self.flying.is_empty() {
            self.land(connection).await?;
        }
        Ok(())
    }

    /// Waits for the oldest answer.
    async fn land(&mut self, connection: &mut Connection) -> Result<(), Refusal> {
        let Some((n, answer)) = self.flying.front_mut() else { return Ok(()) };
        let n = *n;
        let told = connection.wait(answer).await;
        self.flying.pop_front();
        match told {
            Ok(outcome) => self.tell(n, outcome),
            Err(Trouble::Row(outcome)) => self.tell(n, outcome),
            Err(Trouble::Connection(refusal)) => return Err(refusal),
        }
        Ok(())
    }

    /// Answers that had come before the connection broke still count.
    pub(super) fn harvest(&mut self) {
        for (n, mut answer) in std::mem::take(&mut self.flying) {
            if let Some(outcome) = answer.now() {
                self.tell(n, outcome);
            }
        }
    }

    pub(super) fn outcomes(self, trouble: &Refusal) -> Vec<Outcome> {
        self.told.into_iter().map(|told| told.unwrap_or_else(|| Outcome::Unknown(trouble.clone()))).collect()
    }
}
