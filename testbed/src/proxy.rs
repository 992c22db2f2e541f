//! A TCP proxy on loopback that breaks the network between a client and a server.
//!
//! Each accepted connection has one thread per direction that copies bytes. A thread that
//! has read something asks the shared state whether its direction flows, and holds the bytes
//! until it does. So "the request got through, the answer did not" is: stall the answers,
//! send, [`Proxy::wait_for_held_answer`], cut, heal.
//!
//! Not promised: packets. A stalled connection still acknowledges a few kilobytes, as a
//! frozen peer's kernel does.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::free_port;

/// How long a server behind the proxy may take to accept a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A running proxy; dropping it closes its port and every connection.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// New connections are refused.
    cut: bool,
    /// The proxy was dropped.
    closed: bool,
    /// The port is open; follows `cut`, set by the accepting thread only.
    listening: bool,
    requests_stalled: bool,
    answers_stalled: bool,
    /// Answers that were read from the server and are withheld from the client now.
    answers_held: usize,
    /// Both ends of every open connection, so that they can be cut.
    connections: HashMap<u64, Arc<[TcpStream; 2]>>,
    next_connection: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Direction {
    Requests,
    Answers,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `target`.
    pub fn start(target: SocketAddr) -> Result<Self> {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let listener = TcpListener::bind(addr).with_context(|| format!("binding {addr}"))?;
        let shared = Arc::new(Shared {
            target,
            state: Mutex::new(State { listening: true, ..State::default() }),
            changed: Condvar::new(),
        });
        let accepting = shared.clone();
        thread::spawn(move || accepting.accept_until_closed(addr, listener));
        Ok(Self { addr, shared })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Closes every connection, losing what was held, and refuses new ones.
    pub fn cut(&self) {
        self.close_port(|state| state.cut = true);
    }

    /// Keeps connections open, and accepts new ones, but forwards nothing in any direction.
    pub fn stall(&self) {
        self.stall_both(true, true);
    }

    /// Withholds what clients send; answers still flow.
    pub fn stall_requests(&self) {
        self.stall_both(true, false);
    }

    /// Withholds what the server answers; requests still flow.
    pub fn stall_answers(&self) {
        self.stall_both(false, true);
    }

    /// Waits until at least one answer of the server is being withheld, so that its request
    /// is known to have been served. False if none came within `timeout`.
    pub fn wait_for_held_answer(&self, timeout: Duration) -> bool {
        let none_held = |state: &mut State| state.answers_held == 0;
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), timeout, none_held);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Undoes every fault: new connections are accepted, held bytes are forwarded. Returns
    /// when the port is open again.
    pub fn heal(&self) {
        let mut state = self.shared.lock();
        state.cut = false;
        state.requests_stalled = false;
        state.answers_stalled = false;
        self.shared.changed.notify_all();
        let state = self.shared.wait_while(state, |state| !state.listening && !state.cut);
        assert!(state.listening, "{} was taken by another", self.addr);
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections.len()
    }

    fn stall_both(&self, requests: bool, answers: bool) {
        let mut state = self.shared.lock();
        state.requests_stalled = requests;
        state.answers_stalled = answers;
        self.shared.changed.notify_all();
    }

    fn close_port(&self, how: impl FnOnce(&mut State)) {
        let mut state = self.shared.lock();
        how(&mut state);
        for (_, ends) in state.connections.drain() {
            for end in ends.iter() {
                // Fails if the peer was faster, and then it is closed too.
                let _ = end.shutdown(Shutdown::Both);
            }
        }
        self.shared.changed.notify_all();
        drop(state);
        // Wakes the thread that waits in accept; it sees the new state and closes the port.
        let _ = TcpStream::connect(self.addr);
        let state = self.shared.lock();
        drop(self.shared.wait_while(state, |state| state.listening));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.close_port(|state| state.closed = true);
    }
}

impl Shared {
    fn accept_until_closed(self: Arc<Self>, addr: SocketAddr, first: TcpListener) {
        let mut listener = Some(first);
        loop {
            if let Some(listener) = listener.take() {
                self.accept_until_cut(&listener);
            }
            let mut state = self.lock();
            state.listening = false;
            self.changed.notify_all();
            state = self.wait_while(state, |state| state.cut && !state.closed);
            if state.closed {
                return;
            }
            // The port lies outside the range given to clients, so nobody has taken it.
            listener = TcpListener::bind(addr).ok();
            state.listening = listener.is_some();
            // Without a port the proxy stays cut, and `heal` says so.
            state.cut = listener.is_none();
            self.changed.notify_all();
        }
    }

    fn accept_until_cut(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.refuses() {
                return;
            }
            if let Ok((client, _)) = accepted {
                let shared = self.clone();
                thread::spawn(move || shared.forward(client));
            }
        }
    }

    fn refuses(&self) -> bool {
        let state = self.lock();
        state.cut || state.closed
    }

    /// Copies both directions until both have ended. A server that cannot be reached shows
    /// as a connection that is closed at once.
    fn forward(self: Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect_timeout(&self.target, CONNECT_MAX) else {
            return;
        };
        // Client and server batch as they like; the proxy must not add delays of its own.
        let _ = client.set_nodelay(true).and(server.set_nodelay(true));
        let ends = Arc::new([client, server]);
        let Some(id) = self.register(&ends) else {
            return;
        };
        let (shared, [client, server]) = (self.clone(), &*ends);
        let copied = ends.clone();
        let answers = thread::spawn(move || shared.copy(Direction::Answers, &copied[1], &copied[0]));
        self.copy(Direction::Requests, client, server);
        let _ = answers.join();
        self.lock().connections.remove(&id);
    }

    /// Makes a connection known, unless the proxy was cut while it was being made.
    fn register(&self, ends: &Arc<[TcpStream; 2]>) -> Option<u64> {
        let mut state = self.lock();
        if state.cut || state.closed {
            return None;
        }
        let id = state.next_connection;
        state.next_connection += 1;
        state.connections.insert(id, ends.clone());
        Some(id)
    }

    fn copy(&self, direction: Direction, mut from: &TcpStream, mut to: &TcpStream) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from.read(&mut buffer).unwrap_or(0);
            self.wait_for_flow(direction, read);
            // After a cut `to` is shut down and what was held is lost here.
            if read == 0 || to.write_all(&buffer[..read]).is_err() {
                let _ = to.shutdown(Shutdown::Write);
                let _ = from.shutdown(Shutdown::Read);
                return;
            }
        }
    }

    /// Returns when `read` bytes may be forwarded; none, which is the end of the stream, is
    /// withheld too but is no answer.
    fn wait_for_flow(&self, direction: Direction, read: usize) {
        let mut state = self.lock();
        if !state.is_stalled(direction) {
            return;
        }
        let answers = usize::from(direction == Direction::Answers && read > 0);
        state.answers_held += answers;
        self.changed.notify_all();
        state = self.wait_while(state, |state| state.is_stalled(direction));
        state.answers_held -= answers;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State>,
        condition: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        self.changed.wait_while(state, condition).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A cut lets held threads go on, because they must end.
    fn is_stalled(&self, direction: Direction) -> bool {
        let stalled = match direction {
            Direction::Requests => self.requests_stalled,
            Direction::Answers => self.answers_stalled,
        };
        stalled && !self.cut && !self.closed
    }
}
