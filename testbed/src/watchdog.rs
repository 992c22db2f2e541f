//! Ends a server whose owner is gone.
//!
//! A small shell reads a pipe that only the owner holds open. However the owner ends, by
//! return, panic, Ctrl-C or SIGKILL, the kernel closes the pipe, and the shell kills the
//! server named last and removes its directory. This needs neither `unsafe` nor a
//! parent-death signal, which the kernel forgets when the server changes its user.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// `$1` is the directory to remove at the end, or nothing. Each line read is the id of the
/// process to end, or nothing if none runs. SIGQUIT first: PostgreSQL then takes its
/// children along. The second signal wakes a server that was paused. A dead server may stay
/// a zombie where no init process reaps it, hence the bound on the wait.
const SCRIPT: &str = r#"
trap '' INT HUP TERM QUIT
pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
    kill -s QUIT "$pid" && kill -s CONT "$pid"
    tries=0
    while kill -s 0 "$pid" && [ "$tries" -lt "$2" ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    kill -s KILL "$pid"
fi
[ -z "$1" ] || rm -rf "$1"
"#;

/// What the watchdog grants a server between asking it to end and killing it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// PostgreSQL kills its children after five seconds; it must be let do so.
    SevenSeconds,
    /// A JVM prints its threads on SIGQUIT and stays.
    None,
}

#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    /// Starts to watch. `remove` is the directory to remove when the owner is gone.
    pub(crate) fn start(remove: Option<&Path>, patience: Patience) -> Result<Self> {
        let tries = match patience {
            Patience::SevenSeconds => "70",
            Patience::None => "0",
        };
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "dipmo-watchdog"])
            .arg(remove.unwrap_or(Path::new("")))
            .arg(tries)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C on the terminal reaches the owner, not its watchdog.
            .process_group(0)
            .spawn()
            .context("starting the watchdog shell")?;
        Ok(Self { shell })
    }

    /// From now on the process `pid` is to be ended; `None` when it has ended.
    pub(crate) fn watch(&mut self, pid: Option<u32>) -> Result<()> {
        let line = pid.map_or_else(String::new, |pid| pid.to_string());
        let stdin = self.shell.stdin.as_mut().context("watchdog has no stdin")?;
        writeln!(stdin, "{line}").context("telling the watchdog")
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
