//! Who is asking: bearer tokens, each with a name and a role.
//!
//! Only digests of tokens are kept, so that no log, error or dump can show one.

use axum::http::{HeaderMap, header};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::problem::{FORBIDDEN, NOT_CONFIGURED, Problem, UNAUTHORIZED};

/// What a token may do. Each of viewer, operator and admin may do what the one before may; a client is
/// a program that sends commands, and sees nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    Client,
    Viewer,
    Operator,
    Admin,
}

/// What a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing, not even a token.
    Open,
    /// Sending a command.
    Send,
    /// Answering a command that was taken.
    Answer,
    /// Seeing how one command stands, by its id.
    Follow,
    /// Seeing everything but payloads.
    Read,
    /// Changing something, and seeing payloads.
    Change,
    /// Changing how dipmo itself works.
    Govern,
}

impl Role {
    pub(crate) const ALL: [Role; 4] = [Role::Client, Role::Viewer, Role::Operator, Role::Admin];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }

    pub(crate) fn may(self, access: Access) -> bool {
        match access {
            Access::Open | Access::Follow => true,
            Access::Send | Access::Answer => matches!(self, Role::Client | Role::Operator | Role::Admin),
            Access::Read => matches!(self, Role::Viewer | Role::Operator | Role::Admin),
            Access::Change => matches!(self, Role::Operator | Role::Admin),
            Access::Govern => self == Role::Admin,
        }
    }
}

impl Access {
    pub(crate) fn roles(self) -> Vec<&'static str> {
        Role::ALL.into_iter().filter(|role| role.may(self)).map(Role::name).collect()
    }
}

/// The SHA-256 of a token.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Digest([u8; 32]);

impl Digest {
    pub(crate) fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    pub(crate) fn from_hex(hex: &str) -> Option<Self> {
        let hex = hex.as_bytes();
        if hex.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            let digit = |n: usize| char::from(pair[n]).to_digit(16);
            *byte = (digit(0)? * 16 + digit(1)?) as u8;
        }
        Some(Self(bytes))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[hidden]")
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) digest: Digest,
}

/// Who sent a request; the actor of what it changes.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) role: Role,
}

impl Caller {
    pub(crate) fn needs(&self, access: Access, what: &str) -> Result<(), Problem> {
        if self.role.may(access) {
            return Ok(());
        }
        let detail = format!("the token {:?} has the role {}, and {what}", self.name, self.role.name());
        let hint = format!("use a token with one of the roles {}", access.roles().join(", "));
        Err(Problem::new(FORBIDDEN, detail, hint))
    }
}

/// Finds out who sent a request, and refuses who may not do what it asks for.
pub(crate) fn admit(tokens: &[Token], headers: &HeaderMap, access: Access) -> Result<Caller, Problem> {
    if tokens.is_empty() {
        return Err(Problem::new(
            NOT_CONFIGURED,
            "no tokens are configured, so nobody may use the API",
            "add tokens to the [api] section: see docs/configuration.md",
        ));
    }
    let refused = |why: &str| {
        Problem::new(UNAUTHORIZED, why, "send the header `Authorization: Bearer <token>`")
            .header(header::WWW_AUTHENTICATE, "Bearer realm=\"dipmo\"")
    };
    let given = headers.get(header::AUTHORIZATION).ok_or_else(|| refused("the request has no token"))?;
    let given = given.to_str().ok().and_then(|text| text.split_once(' '));
    let token = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    let digest = Digest::of(token.ok_or_else(|| refused("the header Authorization holds no bearer token"))?);
    let caller = find(tokens, &digest).ok_or_else(|| refused("the token is not known"))?;
    let caller = Caller { name: caller.name.clone(), role: caller.role };
    caller.needs(access, "that may not do this")?;
    Ok(caller)
}

/// Every token is compared, and each in constant time: how long it takes says nothing.
fn find<'a>(tokens: &'a [Token], digest: &Digest) -> Option<&'a Token> {
    let mut found = None;
    for token in tokens {
        if bool::from(token.digest.0.ct_eq(&digest.0)) {
            found = Some(token);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_may_what_the_table_in_the_docs_says() {
        let table = [
            (Access::Send, "client, operator, admin"),
            (Access::Follow, "client, viewer, operator, admin"),
            (Access::Read, "viewer, operator, admin"),
            (Access::Change, "operator, admin"),
            (Access::Govern, "admin"),
        ];
        for (access, roles) in table {
            assert_eq!(access.roles().join(", "), roles, "{access:?}");
        }
    }

    #[test]
    fn a_digest_is_read_from_hex_and_never_printed() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert!(Digest::from_hex(empty).unwrap() == Digest::of(""));
        assert!(Digest::from_hex(&empty.to_uppercase()).unwrap() == Digest::of(""));
        assert_eq!(format!("{:?}", Digest::of("")), "[hidden]");
        for wrong in ["", "e3", &"g".repeat(64), &"é".repeat(32)] {
            assert!(Digest::from_hex(wrong).is_none(), "{wrong}");
        }
    }
}
