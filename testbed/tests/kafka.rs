//! A real Kafka starts, dies, and comes back on the same port.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;

use testbed::{Kafka, KafkaOptions, Proxy};

/// Asks the broker for its cluster's brokers and topics (Metadata, version 1, no topics) and
/// returns the raw answer, in which the advertised host and port stand in clear.
fn metadata(addr: &str) -> Vec<u8> {
    let header = [0, 3, 0, 1, 0, 0, 0, 7, 0xff, 0xff];
    let no_topics = [0, 0, 0, 0];
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(&14_u32.to_be_bytes()).unwrap();
    stream.write_all(&[&header[..], &no_topics].concat()).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).unwrap();
    answer
}

fn names_port(answer: &[u8], port: u16) -> bool {
    let host_and_port = [&b"127.0.0.1"[..], &u32::from(port).to_be_bytes()].concat();
    answer.windows(host_and_port.len()).any(|part| part == host_and_port)
}

#[test]
fn clients_of_a_proxied_broker_are_told_to_use_the_proxy() {
    let port = testbed::free_port().unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).unwrap();
    let broker = Kafka::start(KafkaOptions {
        port: Some(port),
        advertised_port: Some(proxy.addr().port()),
        ..KafkaOptions::default()
    })
    .unwrap();
    assert_eq!(broker.bootstrap(), proxy.addr().to_string());
    let answer = metadata(&broker.bootstrap());
    assert!(names_port(&answer, proxy.addr().port()));
    assert!(!names_port(&answer, port));
}

#[test]
fn kafka_comes_back_on_the_same_port_after_a_kill() {
    let mut broker = Kafka::start(KafkaOptions::default()).unwrap();
    let bootstrap = broker.bootstrap();
    TcpStream::connect(&bootstrap).expect("a started broker accepts connections");

    broker.kill_dash_nine().unwrap();
    TcpStream::connect(&bootstrap).expect_err("a killed broker refuses connections");

    broker.restart().unwrap();
    assert_eq!(broker.bootstrap(), bootstrap);
    TcpStream::connect(&bootstrap).expect("a restarted broker accepts connections");
}
