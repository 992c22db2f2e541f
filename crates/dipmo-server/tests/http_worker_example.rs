//! The Python example as a process of the test: killed, and back.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod world;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use world::World;
use world::api::{CLIENT, get, post, tokens};
use world::daemon::{Daemon, free_address, until};

const DEFINITIONS: &str = r#"
[[command]]
name = "BookFxContract"
to = "INTERNAL:APP.CMD.FX.BookFxContract.Q"
retry = { attempts_max = 1000, delay_max = "100ms", jitter_max = "0s" }

[[command]]
name = "SettleFxContract"
to = "INTERNAL:APP.CMD.FX.SettleFxContract.Q"
"#;

/// The example; killed when the test ends.
struct Example(Child);

impl Example {
    fn start(port: u16, api: SocketAddr) -> Self {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/http-worker/worker.py");
        let mut command = Command::new("python3");
        command.arg(script).env("PORT", port.to_string()).env("FX_TOKEN", "fx-token-0123456789");
        command.env("DIPMO_API", format!("http://{api}")).env("DIPMO_TOKEN", CLIENT);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("listening"), "{said}");
        Self(child)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn serving(world: &World, port: u16, http: SocketAddr) -> Daemon {
    world.write("fx.toml", DEFINITIONS);
    world.write("token", "fx-token-0123456789");
    world.configure(&format!(
        "[http]\nlisten = \"{http}\"\n{}[sagas]\nfiles = [\"fx.toml\"]\n[[worker]]\nname = \"fx\"\n\
         queues = [\"APP.CMD.FX.BookFxContract.Q\", \"APP.CMD.FX.SettleFxContract.Q\"]\n\
         url = \"http://127.0.0.1:{port}/commands\"\ntoken_file = \"token\"\n",
        tokens()
    ));
    let daemon = Daemon::start_as_configured(world, http, &[]);
    daemon.ready().await;
    daemon
}

fn send(daemon: &Daemon, name: &str, key: &str, amount: i64) -> String {
    let body = json!({ "key": key, "payload": { "amount": amount } });
    let accepted = daemon.call(&post(&format!("/v1/commands/{name}"), CLIENT, &body)).is(202);
    accepted["links"]["self"].as_str().unwrap().to_owned()
}

async fn command(daemon: &Daemon, place: &str, status: &str) -> Value {
    let shown = || daemon.call(&get(place, CLIENT)).is(200);
    until(&format!("the command is {status}"), async || shown()["status"] == status).await;
    shown()
}

#[tokio::test]
async fn the_python_example_does_commands_at_once_and_later() {
    let world = World::new().await;
    let (port, http) = (free_address().port(), free_address());
    let _example = Example::start(port, http);
    let daemon = serving(&world, port, http).await;
    let booked = command(&daemon, &send(&daemon, "BookFxContract", "P-1", 100), "SUCCEEDED").await;
    assert_eq!(booked["result"], json!({ "contract": "FX-P-1", "amount": 100 }));
    let refused = command(&daemon, &send(&daemon, "BookFxContract", "P-2", 0), "FAILED").await;
    assert_eq!((&refused["errorCode"], &refused["error"]), (&json!("BAD_AMOUNT"), &json!("0 cannot be booked")));
    let settled = command(&daemon, &send(&daemon, "SettleFxContract", "P-1", 100), "SUCCEEDED").await;
    assert_eq!(settled["result"], json!({ "settled": "P-1" }));
}

#[tokio::test]
async fn a_worker_that_was_killed_does_what_waited_for_it_when_it_is_back() {
    let world = World::new().await;
    let (port, http) = (free_address().port(), free_address());
    let example = Example::start(port, http);
    let daemon = serving(&world, port, http).await;
    command(&daemon, &send(&daemon, "BookFxContract", "P-1", 1), "SUCCEEDED").await;
    drop(example);
    let waiting = send(&daemon, "BookFxContract", "P-2", 2);
    let unreachable = "select count(*) from outbox
        where event_type = 'CommandFailed' and convert_from(payload, 'UTF8') like '%WORKER_UNREACHABLE%'";
    until("it is tried and tried again", async || world.number(unreachable).await >= 2).await;
    let _example = Example::start(port, http);
    assert_eq!(command(&daemon, &waiting, "SUCCEEDED").await["result"]["contract"], "FX-P-2");
}
