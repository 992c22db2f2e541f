//! A context without a database: an HTTP server of the test that says what it is told to say.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, Response};
use axum::routing::post;
use serde_json::Value;
use tokio::net::TcpListener;

/// What the worker says to a call.
#[derive(Debug, Clone)]
pub(crate) enum Say {
    /// Status, headers and body.
    This(u16, &'static [(&'static str, &'static str)], &'static str),
    /// Nothing, until the caller goes away.
    Nothing,
}

pub(crate) fn ok(body: &'static str) -> Say {
    Say::This(200, &[("content-type", "application/json")], body)
}

/// What came with a call.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// The other end of the connection.
    pub(crate) peer: SocketAddr,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn envelope(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("{name} is missing: {self:?}")).to_str().unwrap()
    }
}

#[derive(Default)]
struct Book {
    to_say: VecDeque<Say>,
    seen: Vec<Seen>,
}

#[derive(Clone)]
pub(crate) struct Worker {
    address: SocketAddr,
    book: Arc<Mutex<Book>>,
}

impl Worker {
    /// Says these in turn, and to calls beyond them the last once more.
    pub(crate) async fn saying(to_say: impl IntoIterator<Item = Say>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let book = Arc::new(Mutex::new(Book { to_say: to_say.into_iter().collect(), ..Book::default() }));
        let router = Router::new().route("/commands", post(take)).with_state(Arc::clone(&book));
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self { address, book }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/commands", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.book.lock().unwrap().seen.clone()
    }
}

async fn take(
    State(book): State<Arc<Mutex<Book>>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let say = {
        let mut book = book.lock().unwrap();
        book.seen.push(Seen { peer, headers, body });
        let say = book.to_say.pop_front().expect("there is always something to say");
        if book.to_say.is_empty() {
            book.to_say.push_back(say.clone());
        }
        say
    };
    match say {
        Say::Nothing => std::future::pending().await,
        Say::This(status, headers, body) => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(*name, *value);
            }
            response.body(Body::from(body)).unwrap()
        }
    }
}
