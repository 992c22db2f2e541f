//! The screening service that judges hits: a seam, because in real life it is somebody else's.

use super::domain::Verdict;

/// From this score on a hit is positive.
const POSITIVE_MIN: u16 = 50;

/// Judges a hit. `attempt` counts the calls made for the same hit, from one.
pub trait Screening: Send + Sync + 'static {
    fn screen(&self, subject: &str, score: u16, attempt: u32) -> Result<Verdict, Unanswered>;
}

/// No answer this time; the same question may be asked again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    pub why: String,
}

/// Judges by the score alone. Like every remote service it times out now and then: about a subject
/// named `slow-N`, the first N times.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScoreScreening;

impl Screening for ScoreScreening {
    fn screen(&self, subject: &str, score: u16, attempt: u32) -> Result<Verdict, Unanswered> {
        let slow: u32 = subject.strip_prefix("slow-").and_then(|n| n.parse().ok()).unwrap_or(0);
        if attempt <= slow {
            return Err(Unanswered { why: format!("the screening service timed out, call {attempt}") });
        }
        Ok(if score >= POSITIVE_MIN { Verdict::Positive } else { Verdict::Negative })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_decides() {
        let screen = |score| ScoreScreening.screen("J. Doe", score, 1);
        assert_eq!((screen(49), screen(50)), (Ok(Verdict::Negative), Ok(Verdict::Positive)));
    }

    #[test]
    fn a_slow_subject_is_answered_in_the_end() {
        let answers: Vec<bool> = (1..=4).map(|n| ScoreScreening.screen("slow-2", 80, n).is_ok()).collect();
        assert_eq!(answers, [false, false, true, true]);
    }
}
