//! A real Artemis starts, dies, and comes back on the same port.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;

use testbed::{Artemis, ArtemisOptions};

/// The broker's answer to the header that opens SASL in AMQP 1.0, with the mechanisms it offers after it.
fn greeting(address: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"AMQP\x03\x01\x00\x00").unwrap();
    let mut answer = vec![0; 8];
    stream.read_exact(&mut answer).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(length) as usize - 4];
    stream.read_exact(&mut frame).unwrap();
    answer.extend(frame);
    answer
}

#[test]
fn artemis_speaks_amqp_to_those_who_log_in_and_comes_back_on_the_same_port_after_a_kill() {
    let mut broker = Artemis::start(ArtemisOptions::default()).unwrap();
    let address = broker.address();
    let answer = greeting(&address);
    assert_eq!(&answer[..8], b"AMQP\x03\x01\x00\x00");
    assert!(answer.windows(5).any(|word| word == b"PLAIN"));
    assert!(!answer.windows(9).any(|word| word == b"ANONYMOUS"));

    broker.kill_dash_nine().unwrap();
    TcpStream::connect(&address).expect_err("a killed broker refuses connections");

    broker.restart().unwrap();
    assert_eq!(broker.address(), address);
    greeting(&address);
}
