//! Bytes of the protocol, read with every length checked: a short frame is an error, never a panic.

use crate::error::{Error, ErrorKind, Result};

/// What is still unread of a frame, and where that begins.
pub(super) struct Reader<'a> {
    frame: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(frame: &'a [u8]) -> Self {
        Self { frame, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.frame.len());
        let Some(end) = end else {
            return Err(malformed(format!("{len} bytes expected at {}, the frame has {}", self.at, self.frame.len())));
        };
        let taken = &self.frame[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| malformed("a slice changed its length".to_owned()))
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn i16(&mut self) -> Result<i16> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(super) fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A length that counts what follows it.
    pub(super) fn len(&mut self) -> Result<usize> {
        let len = self.i32()?;
        usize::try_from(len).map_err(|_| malformed(format!("a length of {len} at {}", self.at)))
    }

    /// Text up to a zero byte.
    pub(super) fn text(&mut self) -> Result<&'a str> {
        let rest = &self.frame[self.at..];
        let len = rest.iter().position(|byte| *byte == 0).ok_or_else(|| malformed("a text without end".to_owned()))?;
        let text = std::str::from_utf8(&rest[..len]).map_err(|_| malformed("a text that is not UTF-8".to_owned()))?;
        self.at += len + 1;
        Ok(text)
    }
}

/// The server and this library do not speak the same protocol; reading on would lose rows.
pub(super) fn malformed(why: String) -> Error {
    Error::new(ErrorKind::Bug, format!("replication stream: malformed frame: {why}"))
}
