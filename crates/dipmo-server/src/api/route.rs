//! One table of what the API can do: the router, the access rules and the OpenAPI document are made of it.

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{self, MethodRouter};

use super::Api;
use super::auth::Access;

/// A method of an address: what answers it, who may ask, and what the document says of it.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) summary: &'static str,
    /// The names of what may stand in the query.
    pub(crate) query: &'static [&'static str],
    /// The schema of the body.
    pub(crate) body: Option<&'static str>,
    pub(crate) answer: Answer,
    pub(crate) handler: MethodRouter<Api>,
}

/// What is answered when all goes well, by the name of its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    One(&'static str),
    /// A page of them.
    Page(&'static str),
    /// 202: it will be done.
    Accepted(&'static str),
}

pub(crate) fn get<H, T>(path: &'static str, access: Access, handler: H) -> Route
where
    H: Handler<T, Api>,
    T: 'static,
{
    Route::new(Method::GET, path, access, routing::get(handler))
}

pub(crate) fn post<H, T>(path: &'static str, access: Access, handler: H) -> Route
where
    H: Handler<T, Api>,
    T: 'static,
{
    Route::new(Method::POST, path, access, routing::post(handler))
}

impl Route {
    fn new(method: Method, path: &'static str, access: Access, handler: MethodRouter<Api>) -> Self {
        Self { method, path, access, summary: "", query: &[], body: None, answer: Answer::One("Changed"), handler }
    }

    pub(crate) fn says(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    pub(crate) fn asks(mut self, query: &'static [&'static str]) -> Self {
        self.query = query;
        self
    }

    pub(crate) fn takes(mut self, body: &'static str) -> Self {
        self.body = Some(body);
        self
    }

    pub(crate) fn answers(mut self, answer: Answer) -> Self {
        self.answer = answer;
        self
    }
}
