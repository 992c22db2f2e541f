//! The API of a daemon. Every answer is held against the OpenAPI document that the daemon itself gives.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::daemon::Daemon;

/// One token of each role: the word that follows the role is what a log must never show.
pub(crate) const CLIENT: &str = "client-sesame-0123456789";
pub(crate) const VIEWER: &str = "viewer-sesame-0123456789";
pub(crate) const OPERATOR: &str = "operator-sesame-0123456789";
pub(crate) const ADMIN: &str = "admin-sesame-0123456789";

/// The `[api]` section with these tokens; each is named after its role, as in `the-viewer`.
pub(crate) fn tokens() -> String {
    let mut text = "[api]\n".to_owned();
    for token in [CLIENT, VIEWER, OPERATOR, ADMIN] {
        let role = token.split('-').next().unwrap();
        text.push_str(&format!(
            "[[api.tokens]]\nname = \"the-{role}\"\nrole = \"{role}\"\ntoken_sha256 = \"{}\"\n",
            sha256(token)
        ));
    }
    text
}

pub(crate) fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Call {
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

pub(crate) fn get(path: &str, token: &str) -> Call {
    Call { method: "GET", path: path.to_owned(), ..Call::default() }.bearer(token)
}

pub(crate) fn post(path: &str, token: &str, body: &Value) -> Call {
    let call = Call { method: "POST", path: path.to_owned(), body: Some(body.to_string()), ..Call::default() };
    call.bearer(token).header("content-type", "application/json")
}

impl Call {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| other != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        if token.is_empty() { self } else { self.header("authorization", &format!("Bearer {token}")) }
    }

    pub(crate) fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    /// Whatever bytes, instead of JSON.
    pub(crate) fn raw(mut self, body: &str) -> Self {
        self.body = Some(body.to_owned());
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let body = self.body.as_deref().unwrap_or_default();
        let mut text = format!("{} {} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.body.is_some() {
            text.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        format!("{text}\r\n{body}").into_bytes()
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.body
    }

    /// A problem of this kind, with everything that a problem has.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, kind: &str) -> Value {
        assert_eq!(
            (self.status, &self.body["type"]),
            (status, &json!(format!("urn:dipmo:problem:{kind}"))),
            "{self:?}"
        );
        assert_eq!(self.body["status"], status, "{self:?}");
        for field in ["title", "detail", "instance", "hint"] {
            assert!(self.body[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {self:?}");
        }
        self.body
    }
}

impl Daemon {
    /// Calls, and holds the answer against the document.
    #[track_caller]
    pub(crate) fn call(&self, call: &Call) -> Answer {
        let answer = self.send(call).expect("the daemon answers");
        let document = self.document();
        let kind = answer.header("content-type").unwrap_or_default();
        let schema = match answer.status {
            200..300 => {
                let path = template(&document, call.path.split('?').next().unwrap());
                let operation = &document["paths"][path][call.method.to_lowercase()];
                assert_eq!(kind, "application/json", "{answer:?}");
                operation["responses"][answer.status.to_string()]["content"][kind]["schema"].clone()
            }
            _ => {
                assert_eq!(kind, "application/problem+json", "{answer:?}");
                json!({ "$ref": "#/components/schemas/Problem" })
            }
        };
        assert!(schema.is_object(), "{} {} is not documented with {}", call.method, call.path, answer.status);
        let schema = json!({ "allOf": [schema], "components": document["components"] });
        let validator = jsonschema::validator_for(&schema).unwrap();
        let wrong: Vec<String> =
            validator.iter_errors(&answer.body).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(wrong.is_empty(), "{} {}: {wrong:?} in {}", call.method, call.path, answer.body);
        answer
    }

    pub(crate) fn document(&self) -> Value {
        serde_json::from_str(&self.get("/v1/openapi.json").expect("the daemon answers").1).unwrap()
    }

    /// `None` when the daemon is gone before it has answered.
    pub(crate) fn send(&self, call: &Call) -> Option<Answer> {
        let mut stream = TcpStream::connect(self.http).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        // A daemon that refuses a body need not read it to its end.
        let _ = stream.write_all(&call.bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let headers = head.lines().skip(1).filter_map(|line| line.split_once(": "));
        Some(Answer {
            status: head.split(' ').nth(1)?.parse().ok()?,
            headers: headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect(),
            body: serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned())),
        })
    }
}

/// The path of the document that an address belongs to.
fn template<'a>(document: &'a Value, address: &str) -> &'a str {
    let fits = |path: &str| {
        let (path, address) = (path.split('/').collect::<Vec<_>>(), address.split('/').collect::<Vec<_>>());
        path.len() == address.len() && path.iter().zip(&address).all(|(p, a)| p == a || p.starts_with('{'))
    };
    let paths = document["paths"].as_object().unwrap();
    paths.keys().map(String::as_str).find(|path| fits(path)).unwrap_or_else(|| panic!("{address} is not documented"))
}
