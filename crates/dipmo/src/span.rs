//! Spans of time as people write them: `500ms`, `15s`, `10m`, `1h30m`, `7d`.

use std::time::Duration;

/// Reads a span; what is wrong is told with an example of how to write one.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a span of time: write 500ms, 15s, 10m, 1h30m or 7d");
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let seconds = match &rest[..letters] {
            "ms" => {
                total = total.checked_add(Duration::from_millis(number)).ok_or_else(wrong)?;
                0
            }
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            "d" => 86_400,
            _ => return Err(wrong()),
        };
        let part = Duration::from_secs(number.checked_mul(seconds).ok_or_else(wrong)?);
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = &rest[letters..];
    }
    Ok(total)
}

/// The span in the form that [`parse`] reads; what is below a millisecond is left out.
pub fn show(span: Duration) -> String {
    let (mut seconds, millis) = (span.as_secs(), span.subsec_millis());
    if seconds == 0 && millis == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, size) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
        if seconds >= size {
            text += &format!("{}{unit}", seconds / size);
            seconds %= size;
        }
    }
    if millis > 0 {
        text += &format!("{millis}ms");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_back_what_they_show() {
        for text in ["0s", "500ms", "15s", "10m", "1h30m", "7d", "1d1h1m1s1ms"] {
            assert_eq!(show(parse(text).unwrap()), text);
        }
        for text in ["", "15", "s", "-1s", "1y", "99999999999999999999s", "184467440737095516d"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
