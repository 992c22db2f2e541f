//! What a review concludes. Knows no infrastructure.

use serde::{Deserialize, Serialize};

/// A resemblance as strong as this is confirmed.
const CONFIRMED_MIN: u16 = 90;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Conclusion {
    Confirmed,
    Dismissed,
}

impl Conclusion {
    pub fn of(score: u16) -> Self {
        if score >= CONFIRMED_MIN { Conclusion::Confirmed } else { Conclusion::Dismissed }
    }

    pub fn name(self) -> &'static str {
        match self {
            Conclusion::Confirmed => "confirmed",
            Conclusion::Dismissed => "dismissed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_strong_resemblance_is_confirmed() {
        assert_eq!((Conclusion::of(89).name(), Conclusion::of(90).name()), ("dismissed", "confirmed"));
    }
}
