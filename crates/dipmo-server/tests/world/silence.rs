//! A database whose answer to one commit never arrives: what was asked for is done, and nobody hears of it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stands between a daemon and PostgreSQL. From the first commit of a connection that has prepared the
/// statement `marked`, that connection hears nothing any more.
pub(crate) struct Silence {
    pub(crate) address: SocketAddr,
}

impl Silence {
    pub(crate) fn before(server: SocketAddr, marked: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Ends with the process of the test: a thread that waits for a connection cannot be told to stop.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                carry(client, server, marked);
            }
        });
        Self { address }
    }
}

fn carry(client: TcpStream, server: TcpStream, marked: &'static str) {
    let silent = Arc::new(AtomicBool::new(false));
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (mut from_server, mut to_client) = (server, client);
    let hush = Arc::clone(&silent);
    std::thread::spawn(move || {
        let (mut buffer, mut said) = ([0; 65_536], Vec::new());
        while let Ok(count @ 1..) = from_client.read(&mut buffer) {
            said.extend_from_slice(&buffer[..count]);
            if contains(&said, marked.as_bytes()) && contains(&buffer[..count], b"commit\0") {
                hush.store(true, Ordering::SeqCst);
            }
            if to_server.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to_server.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok(count @ 1..) = from_server.read(&mut buffer) {
            if !silent.load(Ordering::SeqCst) && to_client.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        if !silent.load(Ordering::SeqCst) {
            let _ = to_client.shutdown(Shutdown::Both);
        }
    });
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
