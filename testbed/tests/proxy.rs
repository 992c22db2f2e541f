//! The proxy forwards, cuts, stalls each direction alone, and heals.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use testbed::Proxy;

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(100);

/// Answers every byte with the same byte, and counts them.
struct Echo {
    addr: SocketAddr,
    served: Arc<AtomicUsize>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let served = Arc::new(AtomicUsize::new(0));
        let counter = served.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, counter) = (stream.unwrap(), counter.clone());
                thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() {
                        counter.fetch_add(1, Ordering::SeqCst);
                        let _ = stream.write_all(&byte);
                    }
                });
            }
        });
        Self { addr, served }
    }
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])
}

#[test]
fn a_cut_ends_connections_and_refuses_new_ones_until_healed() {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.addr).unwrap();
    let mut before = connect(&proxy);
    ask(&mut before).unwrap();
    assert_eq!(proxy.connections(), 1);

    proxy.cut();
    ask(&mut before).unwrap_err();
    let refused = TcpStream::connect(proxy.addr()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

    proxy.heal();
    ask(&mut connect(&proxy)).unwrap();
}

#[test]
fn a_stall_keeps_the_connection_and_healing_forwards_what_was_held() {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.addr).unwrap();
    let mut stream = connect(&proxy);
    ask(&mut stream).unwrap();

    proxy.stall();
    stream.set_read_timeout(Some(SHORT)).unwrap();
    let stalled = ask(&mut stream).unwrap_err();
    assert_eq!(stalled.kind(), ErrorKind::WouldBlock);
    assert_eq!(echo.served.load(Ordering::SeqCst), 1);

    proxy.heal();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_request_gets_through_while_its_answer_is_lost() {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.addr).unwrap();
    let mut stream = connect(&proxy);
    ask(&mut stream).unwrap();

    proxy.stall_answers();
    stream.write_all(b"x").unwrap();
    assert!(proxy.wait_for_held_answer(LONG));
    assert_eq!(echo.served.load(Ordering::SeqCst), 2);
    proxy.cut();
    proxy.heal();

    stream.read_exact(&mut [0]).unwrap_err();
    ask(&mut connect(&proxy)).unwrap();
}

#[test]
fn a_dropped_proxy_ends_its_connections() {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.addr).unwrap();
    let mut stream = connect(&proxy);
    ask(&mut stream).unwrap();
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || sender.send(stream.read_exact(&mut [0]).is_err()));
    drop(proxy);
    assert!(ended.recv_timeout(LONG).unwrap());
}
