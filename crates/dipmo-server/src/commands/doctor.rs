//! `dipmo doctor`: every check with its verdict; exit code 10 when one asks for action.

use dipmo::operator::doctor::{Diagnosis, DoctorOptions, Verdict, doctor};

use super::Context;
use crate::cli::Format;
use crate::exit::{Exit, Quit};
use crate::output;

pub(super) async fn run(context: &Context) -> Result<Exit, Quit> {
    let options = DoctorOptions { upkeep: Some(context.config.upkeep()), ..DoctorOptions::default() };
    let diagnosis = doctor(&context.db()?, &options).await?;
    match context.format {
        Format::Table => output::print(&sheet(&diagnosis))?,
        Format::Json => output::json(&diagnosis)?,
        Format::Jsonl => output::lines(diagnosis.checks.iter().map(output::compact))?,
        Format::Name => {
            let faults = diagnosis.checks.iter().filter(|check| check.verdict == Verdict::Degraded);
            output::lines(faults.map(|check| check.name.to_owned()))?;
        }
    }
    Ok(if diagnosis.degraded { Exit::Degraded } else { Exit::Ok })
}

/// Findings are whole sentences, so they are not squeezed into columns.
fn sheet(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for check in &diagnosis.checks {
        let verdict = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Degraded => "DEGRADED",
        };
        text.push_str(&format!("{verdict:<9} {:<11} {}\n", check.name, output::harmless(&check.finding)));
        if let Some(advice) = &check.advice {
            text.push_str(&format!("{:21} -> {advice}\n", ""));
        }
    }
    text
}
