//! How far the run is: one line that is written over on a terminal, a plain line now and then elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::Result;
use dipmo::store::postgres::Db;

use crate::{HIT_INTAKE, ONBOARDING_INTAKE};

const PLAIN_EVERY: Duration = Duration::from_secs(2);

const LOOK: &str = "
-- demo.look
select (select count(*) from kyc.effect),
       (select count(distinct (c.name, o.message_id)) from dipmo.outbox o cross join unnest($1::text[]) as c (name)
        join dipmo.inbox_dedupe d on d.key = dipmo.dedupe_key(c.name, 'INTERNAL', o.message_id::text))
       + (select count(*) from dipmo.inbox i join dipmo.consumer c on c.id = i.consumer_id
          where c.name = any($1) and i.source <> 'INTERNAL'),
       count(*) filter (where state = 'RECEIVED'), count(*) filter (where state = 'RETRY'),
       count(*) filter (where state = 'PARKED'), count(*) filter (where state in ('DEAD', 'SERDE_ERROR')),
       (select count(*) from dipmo.parked_key where state = 'DRAINING')
from dipmo.inbox_work";

const UNSENT: &str = "
-- demo.unsent
select count(*) from dipmo.outbox_status where state in ('PENDING', 'RETRY')";

/// A moment of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) effects: i64,
    pub(super) received: i64,
    waiting: i64,
    retrying: i64,
    parked: i64,
    aside: i64,
    draining: i64,
}

impl Look {
    pub(super) async fn take(db: &Db) -> Result<Self> {
        let client = db.client().await?;
        let look = client.prepare_cached(LOOK).await?;
        let row = client.query_one(&look, &[&[HIT_INTAKE, ONBOARDING_INTAKE].as_slice()]).await?;
        Ok(Self {
            effects: row.get(0),
            received: row.get(1),
            waiting: row.get(2),
            retrying: row.get(3),
            parked: row.get(4),
            aside: row.get(5),
            draining: row.get(6),
        })
    }

    /// Nothing waits for anybody but an operator.
    pub(super) async fn is_quiet(&self, db: &Db) -> Result<bool> {
        if self.waiting + self.retrying + self.draining > 0 {
            return Ok(false);
        }
        let unsent: i64 = db.client().await?.query_one(UNSENT, &[]).await?.get(0);
        Ok(unsent == 0)
    }
}

#[derive(Debug)]
pub(super) struct Progress {
    begun: Instant,
    printed: Option<Instant>,
    terminal: bool,
    messages: usize,
    effects: usize,
}

impl Progress {
    pub(super) fn new(messages: usize, effects: usize) -> Self {
        let terminal = std::io::stdout().is_terminal();
        Self { begun: Instant::now(), printed: None, terminal, messages, effects }
    }

    pub(super) fn show(&mut self, look: &Look, kills: usize) {
        if !self.terminal && self.printed.is_some_and(|at| at.elapsed() < PLAIN_EVERY) {
            return;
        }
        self.printed = Some(Instant::now());
        let line = format!(
            "{:6.1} s  received {}/{}  effects {}/{}  to do {}  retrying {}  parked {}  set aside {}  kills {kills}",
            self.begun.elapsed().as_secs_f64(),
            look.received,
            self.messages,
            look.effects,
            self.effects,
            look.waiting,
            look.retrying,
            look.parked,
            look.aside,
        );
        if self.terminal {
            // Back to the beginning of the line, and clear what was there.
            print!("\r\x1b[2K{line}");
        } else {
            println!("{line}");
        }
        let _ = std::io::stdout().flush();
    }

    /// A line of its own, which stays.
    pub(super) fn say(&self, text: &str) {
        let clear = if self.terminal { "\r\x1b[2K" } else { "" };
        println!("{clear}{:6.1} s  {text}", self.begun.elapsed().as_secs_f64());
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}
