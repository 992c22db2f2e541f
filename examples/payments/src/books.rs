//! Adds everything up: what each payment came to, in every context and at the bank, must agree.
//!
//! Reads with the owner's rights what no context could see, and judges it by pure functions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use dipmo::store::postgres::Db;

use crate::bank::Bank;
use crate::context::Context;
use crate::payments::SAGA;
use crate::wiring::Platform;

/// A payment as it was scheduled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduled {
    pub account: String,
    pub amount: i64,
    pub foreign: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub initial: i64,
    pub balance: i64,
    pub held: i64,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub scheduled: BTreeMap<String, Scheduled>,
    /// Status of each saga, by payment; a second saga of one payment would be a second entry.
    pub sagas: Vec<(String, String)>,
    /// Status and error of each item of the batch.
    pub items: BTreeMap<String, (String, Option<String>)>,
    pub submitted: BTreeMap<String, i64>,
    pub accounts: BTreeMap<String, Account>,
    pub holds_open: Vec<String>,
    pub used: BTreeMap<String, i64>,
    /// Payments whose contract is open by our ledger, and the keys of those the bank has open.
    pub contracts: BTreeMap<String, Option<String>>,
    pub bank: BTreeSet<String>,
    /// Sagas whose journal does not lead to their state without a gap.
    pub journal_broken: i64,
    pub commands_open: i64,
    pub unsent: i64,
    /// Messages that wait for an operator.
    pub dead: i64,
}

/// One statement about the books, and everything that speaks against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub claim: &'static str,
    pub against: Vec<String>,
}

impl Check {
    pub fn passed(&self) -> bool {
        self.against.is_empty()
    }
}

impl Facts {
    pub async fn read(platform: &Platform, bank: &Bank) -> Result<Self> {
        let mut facts = Self { bank: bank.open_contracts().into_iter().collect(), ..Self::default() };
        let core = platform.db(&platform.core, "books")?;
        facts.read_core(&core).await?;
        for context in Context::ALL {
            let own = platform.db(&platform.contexts[&context], "books")?;
            let db = if platform.is_shared(context) { &core } else { &own };
            facts.read_context(context, db, platform).await?;
            if !platform.is_shared(context) {
                facts.read_queues(&own).await?;
            }
        }
        Ok(facts)
    }

    async fn read_core(&mut self, db: &Db) -> Result<()> {
        let rows = texts(db, &format!("select business_key, status from dipmo.process where type = '{SAGA}'")).await?;
        self.sagas = rows.into_iter().map(|row| (text(&row, 0), text(&row, 1))).collect();
        for row in texts(db, "select item_id, status, last_error from dipmo.batch_item").await? {
            self.items.insert(text(&row, 0), (text(&row, 1), row[2].clone()));
        }
        self.journal_broken = number(
            db,
            "select count(*) from dipmo.process p
             left join lateral (
                 select bool_and(from_state is not distinct from before) as whole,
                        (array_agg(to_state order by id desc))[1] as last, count(*) as lines
                 from (select j.id, j.from_state, j.to_state, lag(j.to_state) over (order by j.id) as before
                       from dipmo.journal j where j.process_id = p.id) lines
             ) j on true
             where j.lines = 0 or not j.whole or j.last is distinct from p.state",
        )
        .await?;
        let open = "select count(*) from dipmo.command where status in ('PENDING', 'RUNNING')";
        self.commands_open = number(db, open).await?;
        self.read_queues(db).await
    }

    async fn read_queues(&mut self, db: &Db) -> Result<()> {
        let unsent = "select count(*) from dipmo.outbox_status where state not in ('PUBLISHED', 'DISCARDED')";
        self.unsent += number(db, unsent).await?;
        self.dead += number(db, "select count(*) from dipmo.inbox_work").await?;
        Ok(())
    }

    async fn read_context(&mut self, context: Context, db: &Db, platform: &Platform) -> Result<()> {
        let domain = platform.domain(context);
        let rows = async |sql: &str| texts(db, &domain.sql(sql)).await;
        match context {
            Context::Accounts => {
                for row in rows("select id, initial::text, balance::text, held::text from domain.account").await? {
                    let account = Account { initial: sum(&row, 1), balance: sum(&row, 2), held: sum(&row, 3) };
                    self.accounts.insert(text(&row, 0), account);
                }
                let open = rows("select payment_id from domain.hold where status = 'HELD'").await?;
                self.holds_open = open.iter().map(|row| text(row, 0)).collect();
            }
            Context::Limits => {
                for row in rows("select account_id, sum(used)::text from domain.usage group by 1").await? {
                    self.used.insert(text(&row, 0), sum(&row, 1));
                }
            }
            Context::Fx => {
                let open = "select payment_id, idempotency_key from domain.fx_contract
                            where status in ('ASKED', 'BOOKED')";
                for row in rows(open).await? {
                    self.contracts.insert(text(&row, 0), row[1].clone());
                }
            }
            Context::Payments => {
                let scheduled = "select id, account_id, amount::text, (currency <> pay_currency)::text
                                 from domain.scheduled_payment";
                for row in rows(scheduled).await? {
                    let payment =
                        Scheduled { account: text(&row, 1), amount: sum(&row, 2), foreign: text(&row, 3) == "true" };
                    self.scheduled.insert(text(&row, 0), payment);
                }
                let submitted = "select payment_id, amount::text from domain.payment_submission
                                 where status = 'SUBMITTED'";
                for row in rows(submitted).await? {
                    self.submitted.insert(text(&row, 0), sum(&row, 1));
                }
            }
        }
        Ok(())
    }

    /// Every claim, with what speaks against it; `dead` messages are expected to wait for an operator.
    pub fn checks(&self, dead: i64) -> Vec<Check> {
        vec![
            Check { claim: "every payment has exactly one outcome", against: self.outcomes() },
            Check { claim: "what was submitted is what succeeded, once and in full", against: self.submissions() },
            Check {
                claim: "balances are the initial ones less what was submitted; nothing is held",
                against: self.balances(),
            },
            Check { claim: "limits are used up by what was submitted and by nothing else", against: self.limits() },
            Check {
                claim: "the bank has a contract open for each foreign payment submitted, and no other",
                against: self.exchange(),
            },
            Check {
                claim: "the journal of every saga leads to its state without a gap",
                against: count("sagas", self.journal_broken, 0),
            },
            Check {
                claim: "no command waits for an answer, no message waits to be sent",
                against: [count("commands", self.commands_open, 0), count("messages", self.unsent, 0)].concat(),
            },
            Check {
                claim: "only what is beyond repair waits for an operator",
                against: count("messages", self.dead, dead),
            },
        ]
    }

    fn outcomes(&self) -> Vec<String> {
        let mut statuses: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (payment, status) in &self.sagas {
            statuses.entry(payment).or_default().push(status);
        }
        let wrong = |payment: &String| {
            let item = self.items.get(payment).map(|(status, _)| status.as_str());
            match (statuses.get(payment.as_str()).map(Vec::as_slice), item) {
                (Some(["SUCCEEDED"]), Some("SUCCEEDED")) => None,
                (Some(["FAILED" | "COMPENSATED"]), Some("FAILED" | "TIMED_OUT")) => None,
                (saga, item) => Some(format!("{payment}: saga {saga:?}, item {item:?}")),
            }
        };
        let strangers = statuses.keys().filter(|payment| !self.scheduled.contains_key(**payment));
        let strangers = strangers.map(|payment| format!("{payment}: was never scheduled"));
        self.scheduled.keys().filter_map(wrong).chain(strangers).collect()
    }

    fn succeeded(&self) -> BTreeMap<&str, &Scheduled> {
        let well = self.sagas.iter().filter(|(_, status)| status == "SUCCEEDED");
        well.filter_map(|(payment, _)| Some((payment.as_str(), self.scheduled.get(payment)?))).collect()
    }

    fn submissions(&self) -> Vec<String> {
        let expected: BTreeMap<&str, i64> = self.succeeded().into_iter().map(|(id, p)| (id, p.amount)).collect();
        let found: BTreeMap<&str, i64> = self.submitted.iter().map(|(id, amount)| (id.as_str(), *amount)).collect();
        differences(&expected, &found)
    }

    fn paid_by_account(&self) -> BTreeMap<&str, i64> {
        let mut paid = BTreeMap::new();
        for (payment, amount) in &self.submitted {
            if let Some(scheduled) = self.scheduled.get(payment) {
                *paid.entry(scheduled.account.as_str()).or_default() += amount;
            }
        }
        paid
    }

    fn balances(&self) -> Vec<String> {
        let paid = self.paid_by_account();
        let wrong = |(id, account): (&String, &Account)| {
            let expected = account.initial - paid.get(id.as_str()).unwrap_or(&0);
            (account.balance != expected || account.held != 0)
                .then(|| format!("{id}: balance {}, expected {expected}, held {}", account.balance, account.held))
        };
        let held = self.holds_open.iter().map(|payment| format!("{payment}: its hold is open"));
        self.accounts.iter().filter_map(wrong).chain(held).collect()
    }

    fn limits(&self) -> Vec<String> {
        let found = self.used.iter().filter(|(_, used)| **used != 0).map(|(id, used)| (id.as_str(), *used));
        differences(&self.paid_by_account(), &found.collect())
    }

    fn exchange(&self) -> Vec<String> {
        let needed: BTreeSet<&str> =
            self.succeeded().into_iter().filter(|(_, payment)| payment.foreign).map(|(id, _)| id).collect();
        let ledger: BTreeSet<&str> = self.contracts.keys().map(String::as_str).collect();
        let keys: BTreeSet<&str> = self.contracts.values().flatten().map(String::as_str).collect();
        let bank: BTreeSet<&str> = self.bank.iter().map(String::as_str).collect();
        let by_ledger = needed.symmetric_difference(&ledger).map(|id| format!("{id}: contract and payment disagree"));
        let by_bank = keys.symmetric_difference(&bank).map(|key| format!("{key}: ledger and bank disagree"));
        by_ledger.chain(by_bank).collect()
    }

    /// How many payments came to what: SUCCEEDED, or the code of what stopped them.
    pub fn tally(&self) -> BTreeMap<String, usize> {
        let mut tally = BTreeMap::new();
        for (status, error) in self.items.values() {
            let code = error.as_deref().filter(|_| status != "SUCCEEDED");
            let code = code.map(|error| error.split(':').next().unwrap_or(error).to_owned());
            *tally.entry(code.unwrap_or_else(|| status.clone())).or_default() += 1;
        }
        tally
    }
}

fn count(what: &str, found: i64, expected: i64) -> Vec<String> {
    if found == expected { Vec::new() } else { vec![format!("{found} {what}, expected {expected}")] }
}

fn differences(expected: &BTreeMap<&str, i64>, found: &BTreeMap<&str, i64>) -> Vec<String> {
    let keys: BTreeSet<&&str> = expected.keys().chain(found.keys()).collect();
    let wrong = keys.into_iter().filter(|key| expected.get(**key) != found.get(**key));
    wrong.map(|key| format!("{key}: expected {:?}, found {:?}", expected.get(key), found.get(key))).collect()
}

type TextRow = Vec<Option<String>>;

async fn texts(db: &Db, sql: &str) -> Result<Vec<TextRow>> {
    let sql = sql.replace("dipmo.", &format!("{}.", db.schema()));
    let rows = db.client().await?.query(&sql, &[]).await?;
    Ok(rows.iter().map(|row| (0..row.len()).map(|n| row.get(n)).collect()).collect())
}

async fn number(db: &Db, sql: &str) -> Result<i64> {
    let sql = sql.replace("dipmo.", &format!("{}.", db.schema()));
    Ok(db.client().await?.query_one(&sql, &[]).await?.get(0))
}

fn text(row: &TextRow, n: usize) -> String {
    row[n].clone().unwrap_or_default()
}

fn sum(row: &TextRow, n: usize) -> i64 {
    text(row, n).parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One payment of each kind, and books that agree.
    fn sound() -> Facts {
        let mut facts = Facts::default();
        for (id, foreign, status, item) in
            [("P-1", true, "SUCCEEDED", "SUCCEEDED"), ("P-2", true, "COMPENSATED", "FAILED")]
        {
            let scheduled = Scheduled { account: "A".to_owned(), amount: 10, foreign };
            facts.scheduled.insert(id.to_owned(), scheduled);
            facts.sagas.push((id.to_owned(), status.to_owned()));
            facts.items.insert(id.to_owned(), (item.to_owned(), None));
        }
        facts.submitted.insert("P-1".to_owned(), 10);
        facts.accounts.insert("A".to_owned(), Account { initial: 100, balance: 90, held: 0 });
        facts.used.insert("A".to_owned(), 10);
        facts.contracts.insert("P-1".to_owned(), Some("k1".to_owned()));
        facts.bank.insert("k1".to_owned());
        facts
    }

    fn broken(change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
        let mut facts = sound();
        change(&mut facts);
        facts.checks(0).iter().filter(|check| !check.passed()).map(|check| check.claim).collect()
    }

    #[test]
    fn every_claim_can_fail() {
        assert!(broken(|_| {}).is_empty());
        assert_eq!(broken(|f| f.sagas.push(("P-2".into(), "FAILED".into()))).len(), 1, "two outcomes");
        assert_eq!(broken(|f| f.items.clear()).len(), 1, "no outcome");
        assert_eq!(broken(|f| f.submitted.extend([("P-2".into(), 0)])).len(), 1, "submitted without success");
        assert_eq!(broken(|f| f.accounts.get_mut("A").unwrap().balance = 80).len(), 1);
        assert_eq!(broken(|f| f.holds_open.push("P-2".into())).len(), 1);
        assert_eq!(broken(|f| f.used.extend([("A".into(), 20)])).len(), 1);
        assert_eq!(broken(|f| f.contracts.extend([("P-2".into(), None)])).len(), 1, "open for what failed");
        assert_eq!(broken(|f| f.bank.extend(["k2".into()])).len(), 1, "the bank knows more than we");
        assert_eq!(broken(|f| f.journal_broken = 1).len(), 1);
        assert_eq!(broken(|f| f.commands_open = 1).len(), 1);
        assert_eq!(broken(|f| f.unsent = 1).len(), 1);
        assert_eq!(broken(|f| f.dead = 1).len(), 1);
    }
}
