//! The steps alone: what PostgreSQL does with the inserts when nobody remembers where a saga is.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use async_trait::async_trait;
use tokio_postgres::{Client, Statement};

use super::drive::{Moment, STARTERS_MAX, Sagas, now};
use super::payment::{self, EFFECT};
use crate::servers::connect;

pub(crate) struct Inserts {
    sessions: Vec<(Client, Statement)>,
    ends: Mutex<HashMap<usize, Moment>>,
}

impl Inserts {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let mut sessions = Vec::new();
        for _ in 0..STARTERS_MAX {
            let client = connect(url).await?;
            let effect = client.prepare(EFFECT).await?;
            sessions.push((client, effect));
        }
        Ok(Self { sessions, ends: Mutex::default() })
    }
}

#[async_trait]
impl Sagas for Inserts {
    async fn begin(&self, starter: usize, n: usize) -> Result<()> {
        let (client, effect) = &self.sessions[starter];
        for step in payment::steps(n) {
            client.execute(effect, &[&n.to_string(), &step]).await?;
        }
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).insert(n, now());
        Ok(())
    }

    async fn ends(&self, numbers: Range<usize>) -> Result<HashMap<usize, Moment>> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(ends.iter().filter(|(n, _)| numbers.contains(n)).map(|(n, end)| (*n, *end)).collect())
    }
}
