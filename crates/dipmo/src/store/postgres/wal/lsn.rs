//! A place in the server's log.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Written as PostgreSQL writes it: `16/B374D848`. Zero stands before everything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Hash)]
pub(crate) struct Lsn(pub(crate) u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Lsn {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let half = |part: &str| -> Option<u64> {
            // The parser of the standard library also takes a sign.
            let plain = (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(part, 16).ok())?
        };
        text.split_once('/')
            .and_then(|(high, low)| Some(Self(half(high)? << 32 | half(low)?)))
            .ok_or_else(|| Error::invalid(format!("{text:?} is no WAL position: expected one like 16/B374D848")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_as_it_is_written() {
        for (text, value) in [("0/0", 0), ("16/B374D848", 0x16_B374_D848), ("FFFFFFFF/FFFFFFFF", u64::MAX)] {
            assert_eq!(Lsn(value).to_string(), text);
            assert_eq!(text.parse::<Lsn>().expect(text), Lsn(value));
        }
    }

    #[test]
    fn what_is_no_position_is_refused() {
        for text in ["", "/", "1", "1/", "/1", "+1/1", "1/2/3", "g/1", "123456789/1"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
    }
}
