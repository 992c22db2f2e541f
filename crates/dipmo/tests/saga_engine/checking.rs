//! Files of definitions: what is right is read, what is wrong is told with its line, all of it at once.

use dipmo::saga::{Compiled, Kind, check};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The example of the documentation. Which transport a step uses makes no difference here.
fn documented() -> String {
    let page = include_str!("../../../../docs/sagas.md");
    let toml = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    toml.replace("AMQP:", "KAFKA:").replace("INTERNAL:", "KAFKA:")
}

#[test]
fn the_example_of_the_documentation_is_right() {
    let definitions = check(&documented()).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let names: Vec<(&str, Kind)> = definitions.iter().map(|d| (d.name.as_str(), d.kind)).collect();
    assert_eq!(names, [("PaymentExecution", Kind::Saga), ("SubmitPayment", Kind::Command)]);
    let saga = &definitions[0];
    assert_eq!(saga.steps.len(), 4);
    assert_eq!(saga.steps[2].compensation.as_ref().unwrap().name, "STEP_CANCEL_FX");
    for definition in definitions {
        let json = definition.canonical_json();
        let back: dipmo::saga::Definition = serde_json::from_str(&json).unwrap();
        assert_eq!(back.hash(), definition.hash());
        Compiled::new(back).unwrap();
    }
}

#[test]
fn comments_order_and_defaults_do_not_make_another_version() {
    let plain = "[[saga]]\nname = \"S\"\n[[saga.step]]\nname = \"A\"\ncommand = \"C\"\nto = \"KAFKA:t\"\n";
    let other = "# why\n[[saga]]\n\n[[saga.step]]\nto = 'KAFKA:t' # there\ntimeout = \"1m\"\ncommand = \"C\"\nname = \"A\"\non_failure = \"compensate\"\n";
    let other = other.replace("[[saga]]\n", "[[saga]]\nname = \"S\"\n");
    assert_eq!(check(plain).unwrap()[0].hash(), check(&other).unwrap()[0].hash());
}

const STEP: &str = "[[saga.step]]\nname = \"STEP_A\"\ncommand = \"A\"\nto = \"KAFKA:a\"\n";

fn saga(steps: &str) -> String {
    format!("[[saga]]\nname = \"Sample\"\n{steps}")
}

/// (the file, line, a part of what is told)
fn wrong() -> Vec<(String, usize, &'static str)> {
    let more = |line: &str| saga(&format!("{STEP}{line}\n"));
    vec![
        ("name = ".to_owned(), 1, "this is not TOML"),
        (String::new(), 1, "defines nothing"),
        ("[saga]\nname = \"X\"\n".to_owned(), 1, "array of tables"),
        (saga(""), 1, "has no step"),
        (saga(STEP).replace("Sample", "9 lives"), 2, "is no name for a definition"),
        (saga(STEP).replace("name = \"Sample\"\n", ""), 1, "name is missing"),
        (more("tiemout = \"3s\""), 7, "unknown key \"tiemout\""),
        (more("when = 3"), 7, "when must be a text"),
        (more("when = \"input.a ==\""), 7, "not an expression"),
        (more("when = \"'yes'\""), 7, "neither true nor false"),
        (more("when = \"false\""), 7, "never true"),
        (more("when = \"inptu.a == 1\""), 7, "nothing is named inptu"),
        (more("when = \"steps.STEP_A.result.ok\""), 7, "STEP_A has not run by then"),
        (more("when = \"steps.STEP_X.result.ok\""), 7, "there is no step STEP_X"),
        (more("key = \"lower(input.a)\""), 7, "there is no function lower"),
        (more("key = \"saga.name\""), 7, "a saga has no name"),
        (more("timeout = \"0s\""), 7, "the timeout is 0s"),
        (more("timeout = \"soon\""), 7, "timeout cannot be read"),
        (more("timeout = \"9999d\""), 7, "the timeout is"),
        (more("retry = { attempts_max = 0 }"), 7, "0 attempts"),
        (more("retry = { attempts_max = -1 }"), 7, "a whole number"),
        (more("retry = { attempts = 3 }"), 7, "unknown key \"attempts\""),
        (more("on_failure = \"explode\""), 7, "cannot be \"explode\""),
        (more("payload = { a = \"input.a\", b = { c = [\"(\"] } }"), 7, "not an expression"),
        (more("payload = { a = 99999999999999999999 }"), 7, "cannot be JSON"),
        (more("payload = { a = [nan] }"), 7, "cannot be JSON"),
        (more("payload = { a = 2025-11-02 }"), 7, "cannot be JSON"),
        (saga(&STEP.replace("KAFKA:a", "SMTP:a")), 6, "not a destination"),
        (saga(&STEP.replace("to = \"KAFKA:a\"\n", "")), 3, "to is missing"),
        (saga(&STEP.replace("STEP_A", "step-a")), 4, "is no name for a step"),
        (saga(&STEP.replace("STEP_A", "SUCCEEDED")), 4, "state of a saga that has ended"),
        (saga(&format!("{STEP}{STEP}")), 8, "STEP_A is used twice"),
        (
            more("[saga.step.compensation]\nname = \"STEP_A\"\ncommand = \"U\"\nto = \"KAFKA:u\""),
            8,
            "STEP_A is used twice",
        ),
        (
            more(&format!(
                "[saga.step.compensation]\nname = \"UNDO_A\"\ncommand = \"U\"\nto = \"KAFKA:u\"\npayload = {{ x = \"steps.STEP_B.result\" }}\n{}",
                STEP.replace("STEP_A", "STEP_B")
            )),
            11,
            "STEP_B has not run by then",
        ),
        (more("[saga.output]\nx = \"steps.UNDO.result\""), 7, "unknown key \"output\""),
        (format!("{}{}", saga(STEP), saga(STEP)), 8, "defined twice"),
        ("[[command]]\nname = \"Do\"\nto = \"KAFKA:d\"\ntimeout = \"0s\"\n".to_owned(), 4, "the timeout is 0s"),
    ]
}

#[test]
fn every_mistake_is_told_with_its_line() {
    for (text, line, what) in wrong() {
        let text = if text.contains("[saga.output]") { text.replace("[saga.output]\nx", "output.x") } else { text };
        let problems = check(&text).expect_err(&text);
        let told = problems.iter().any(|problem| problem.line == line && problem.what.contains(what));
        assert!(told, "line {line}, {what}\n{text}\n{problems:#?}");
        assert_eq!(problems.len(), 1, "one mistake, one problem\n{text}\n{problems:#?}");
        let problem = &problems[0];
        assert!(problem.column > 0 && !problem.why.is_empty() && !problem.hint.is_empty(), "{problem:?}");
    }
}

#[test]
fn all_mistakes_are_told_at_once_in_order() {
    let text = "[[saga]]\nname = \"Two\"\nevnts = \"KAFKA:e\"\n[[saga.step]]\nname = \"A\"\ncommand = \"C\"\nto = \"x\"\n\
        timeout = \"0s\"\nwhen = \"input.\"\n[[saga.step]]\nname = \"A\"\ncommand = \"\"\nto = \"KAFKA:t\"\n[[command]]\nname = \"Two\"\nto = 4\n";
    let problems = check(text).unwrap_err();
    let lines: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [3, 7, 8, 9, 11, 12, 15, 16], "{problems:#?}");
}

#[test]
fn whatever_is_in_a_file_checking_it_does_not_panic() {
    let given = std::env::var("DIPMO_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed: u64 = given.unwrap_or_else(|| rand::rng().random());
    println!("seed {seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let parts = [
        "\"",
        "'",
        "[",
        "]",
        "{",
        "}",
        "=",
        "\n",
        ".",
        "input",
        "steps",
        "(",
        ")",
        "?",
        ":",
        "&&",
        "!",
        "9999999999999999999999",
        "ä",
        "\\",
        "has(",
        ".map(x,",
        "0x",
        "inf",
        "2020-01-01",
    ];
    for _ in 0..400 {
        let mut text: Vec<char> = documented().chars().collect();
        for _ in 0..dice.random_range(1..6) {
            let at = dice.random_range(0..text.len());
            let until = (at + dice.random_range(0..12)).min(text.len());
            let part = parts[dice.random_range(0..parts.len())];
            text.splice(at..until, part.chars());
        }
        let _ = check(&text.into_iter().collect::<String>());
    }
}
