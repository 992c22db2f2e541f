//! Who may be onboarded, and how far they are blocked until they are verified. Knows no infrastructure.

use serde::{Deserialize, Serialize};

/// Nobody from there is taken.
const EMBARGOED: [&str; 2] = ["IR", "KP"];

/// A customer asks for a product.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Application {
    pub onboarding_id: String,
    pub customer_id: String,
    pub product: String,
    /// Two capital letters.
    pub country: String,
}

/// What a customer may not do yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Full,
    Partial,
}

/// The application contradicts itself: whoever wrote it must correct it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    pub code: &'static str,
    pub why: String,
}

/// The application is sound and may not be granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub why: String,
}

impl Application {
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.country.len() != 2 || !self.country.bytes().all(|letter| letter.is_ascii_uppercase()) {
            return Err(Invalid { code: "INVALID_COUNTRY", why: "country is not two capital letters".into() });
        }
        Ok(())
    }

    pub fn qualify(&self) -> Result<(), Refusal> {
        if EMBARGOED.contains(&self.country.as_str()) {
            return Err(Refusal { why: format!("country {} is under embargo", self.country) });
        }
        Ok(())
    }

    /// Money that has been lent is harder to get back than money that was paid in.
    pub fn extent(&self) -> Extent {
        if self.product == "credit" { Extent::Full } else { Extent::Partial }
    }
}

impl Extent {
    pub fn name(self) -> &'static str {
        match self {
            Extent::Full => "full",
            Extent::Partial => "partial",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn application(country: &str, product: &str) -> Application {
        Application {
            onboarding_id: "o-1".into(),
            customer_id: "c-1".into(),
            product: product.into(),
            country: country.into(),
        }
    }

    #[test]
    fn a_country_is_two_capital_letters() {
        assert_eq!(application("NL", "account").validate(), Ok(()));
        for wrong in ["", "nl", "NLD"] {
            assert_eq!(application(wrong, "account").validate().unwrap_err().code, "INVALID_COUNTRY", "{wrong:?}");
        }
    }

    #[test]
    fn an_embargo_refuses_and_credit_is_blocked_in_full() {
        assert!(application("KP", "account").qualify().is_err());
        assert_eq!(application("NL", "credit").extent().name(), "full");
        assert_eq!(application("NL", "account").extent().name(), "partial");
    }
}
