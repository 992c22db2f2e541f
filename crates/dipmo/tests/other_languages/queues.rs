//! The queues of a scene.

use dipmo::saga::{REPLY_QUEUE, START_QUEUE};
use testbed::Language;
use uuid::Uuid;

#[derive(Clone)]
pub struct Queues {
    pub start: String,
    pub reply: String,
    /// Where the one who starts sagas is answered.
    pub caller: String,
    check_balance: String,
    check_limit: String,
    /// Whether handlers need no telling.
    pub are_the_usual: bool,
}

impl Queues {
    /// Those that every part uses unless told otherwise; one test of a broker may use them.
    pub fn of_the_contract() -> Self {
        Self {
            start: START_QUEUE.to_owned(),
            reply: REPLY_QUEUE.to_owned(),
            caller: format!("CALLER.{}", Uuid::now_v7().simple()),
            check_balance: "APP.CMD.ACCOUNTS.CheckBalance.Q".to_owned(),
            check_limit: "APP.CMD.LIMITS.CheckDailyLimit.Q".to_owned(),
            are_the_usual: true,
        }
    }

    pub fn of_its_own() -> Self {
        let usual = Self::of_the_contract();
        let own = |name: String| format!("{name}.{}", Uuid::now_v7().simple());
        Self {
            start: own(usual.start),
            reply: own(usual.reply),
            caller: usual.caller,
            check_balance: own(usual.check_balance),
            check_limit: own(usual.check_limit),
            are_the_usual: false,
        }
    }

    /// Those that other runs on the same broker may have used.
    pub fn used_before(&self) -> Vec<&str> {
        let all = [&self.start, &self.reply, &self.check_balance, &self.check_limit];
        all.into_iter().filter(|_| self.are_the_usual).map(String::as_str).collect()
    }

    pub fn of(&self, language: Language) -> &str {
        match language {
            Language::Python => &self.check_balance,
            Language::Java => &self.check_limit,
        }
    }
}
