//! Free ports on the loopback interface.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};

/// Below the range from which the kernel gives ports to clients (32768 and up on Linux).
/// A port from inside that range may be taken by any outgoing connection while its server
/// is down, or a client that retries may even connect to itself.
const RANGE: Range<u16> = 20_000..32_000;

/// A port of 127.0.0.1 on which nobody listens, never given twice by the same process.
///
/// Another process may still take it before the caller binds it; servers therefore try
/// again with another port when they fail to start.
pub fn free_port() -> Result<u16> {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    // Random, so that processes which start together do not walk the same ports.
    let start = RandomState::new().hash_one(std::process::id());
    let length = u64::from(RANGE.end - RANGE.start);
    for step in 0..length {
        let offset = u16::try_from((start.wrapping_add(step)) % length)?;
        let port = RANGE.start + offset;
        if !given.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            given.insert(port);
            return Ok(port);
        }
    }
    bail!("no free port on 127.0.0.1 in {RANGE:?}")
}
