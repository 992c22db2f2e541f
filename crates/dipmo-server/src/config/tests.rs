//! What the file may say, and how precisely a mistake is told.

use rand::{Rng, RngExt};

use super::*;

const EXAMPLE: &str = include_str!("../../../../dipmo.example.toml");

const CONSUMER: &str = "[kafka]\nbrokers = \"b:9092\"\n[[consumer]]\nname = \"billing\"\ntopics = [\"orders\"]\n\
                        handler = { sql = \"app.on_order\" }\n";

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text.as_bytes(), "dipmo.toml")
}

fn wrong(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_example_file_is_valid() {
    let config = parse(EXAMPLE).unwrap_or_else(|error| panic!("{error}"));
    assert!(!config.consumer.is_empty());
}

#[test]
fn an_empty_file_is_all_defaults() {
    let config = parse("").unwrap();
    assert_eq!((config.database.schema.as_str(), config.http.listen.as_str()), ("dipmo", "127.0.0.1:9090"));
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_its_path() {
    let text = wrong("[database]\nschema = \"a\"\n\nshema = \"b\"\n");
    assert!(text.starts_with("dipmo.toml:4: database.shema: unknown field `shema`"), "{text}");
    let text = wrong("[databse]\n");
    assert!(text.starts_with("dipmo.toml:1: databse: unknown field `databse`"), "{text}");
    let text = wrong(&format!("{CONSUMER}modee = \"inline\"\n"));
    assert!(text.starts_with("dipmo.toml:7: consumer[0].modee: unknown field"), "{text}");
}

#[test]
fn a_bad_value_is_told_with_its_line_and_its_path() {
    let cases = [
        ("[log]\nformat = \"xml\"\n", "dipmo.toml:2: log.format: unknown variant `xml`"),
        ("[retention]\ninbox = \"2 weeks\"\n", "dipmo.toml:2: retention.inbox: \"2 weeks\" is not a span of time"),
        ("[http]\nlisten = \"localhost\"\n", "dipmo.toml:2: http.listen: \"localhost\" is not an address"),
        ("[database]\nconnections = \"many\"\n", "dipmo.toml:2: database.connections: invalid type"),
        ("[database]\nconnections = 1\n", "dipmo.toml:2: database.connections: must be 2 to 1000"),
        ("[kafka]\nbrokers = \"\"\n", "dipmo.toml:2: kafka.brokers: is empty"),
        ("[amqp]\nurl = \"h:1\"\n", "dipmo.toml:2: amqp.url: the AMQP URL begins with neither"),
        ("[amqp]\nurl = \"amqp://h\"\nca_file = \"c\"\n", "dipmo.toml:3: amqp.ca_file: "),
        ("[amqp]\nurl = \"amqp://h\"\npassword = \"p\"\n", "dipmo.toml:1: amqp"),
        ("[amqp]\nurl = \"amqp://h\"\nprofile = \"mqtt\"\n", "dipmo.toml:3: amqp.profile: unknown variant"),
        ("[log]\nlevel = \"lo=u=d\"\n", "dipmo.toml:2: log.level"),
        ("[otlp]\nendpoint = \"localhost\"\n", "dipmo.toml:2: otlp.endpoint"),
        ("a = \n", "dipmo.toml:1: "),
        ("[relay]\nbatch_rows = 0\n", "dipmo.toml:1: relay: "),
    ];
    for (file, expected) in cases {
        let text = wrong(file);
        assert!(text.starts_with(expected), "{text:?} should begin with {expected:?}");
    }
}

#[test]
fn a_consumer_that_cannot_work_is_refused_where_it_stands() {
    let with = |line: &str| format!("{CONSUMER}{line}\n");
    let cases = [
        (with("batch_max = 0"), "dipmo.toml:3: consumer[0]: consumer \"billing\": batch_max"),
        (with("dlq_topic = \"\""), "dipmo.toml:3: consumer[0]: consumer \"billing\": dlq_topic"),
        (
            with("pointers = { message_id = \"id\" }"),
            "dipmo.toml:7: consumer[0].pointers: \"id\" is not a JSON pointer",
        ),
        (with("headers = { message = \"x\" }"), "dipmo.toml:7: consumer[0].headers"),
        (CONSUMER.replace("app.on_order", "app.on_order()"), "dipmo.toml:6: consumer[0].handler.sql: "),
        (CONSUMER.replace("topics = [\"orders\"]", ""), "dipmo.toml:3: consumer[0].topics: the consumer has no source"),
        (
            CONSUMER.replace("[kafka]\nbrokers = \"b:9092\"\n", ""),
            "dipmo.toml:3: consumer[0].topics: topics need a [kafka]",
        ),
    ];
    for (file, expected) in &cases {
        let text = wrong(file);
        assert!(text.starts_with(expected), "{text:?} should begin with {expected:?}");
    }
    let twice = CONSUMER.split_once("[[").map(|(_, c)| format!("{CONSUMER}[[{c}")).unwrap();
    assert!(wrong(&twice).contains("consumer[1].name: there is another"), "{}", wrong(&twice));
}

#[test]
fn a_dedupe_window_that_is_too_short_is_refused_with_the_sum() {
    let text = wrong("[retention]\ndedupe = \"7d\"\n");
    assert!(text.contains("retention.dedupe = 7d is too short") && text.contains("redrive 14d"), "{text}");
}

#[test]
fn secrets_are_in_no_message_and_in_no_debug_output() {
    let secret = "hunter2";
    let files = [
        format!("[database]\nurl = \"postgres://u:{secret}@h/d\"\nurlx = 1\n"),
        format!("[database]\nurl = [\"{secret}\"]\n"),
        format!("[kafka]\nbrokers = \"b\"\n[kafka.settings]\n\"sasl.password\" = \"{secret}\"\nx = 1\n"),
        format!("[database]\nurl = \"{secret}\n"),
    ];
    for file in files {
        let text = wrong(&file);
        assert!(!text.contains(secret), "{text}");
    }
    let file = format!(
        "[database]\nurl = \"postgres://u:{secret}@h/d\"\n[kafka]\nbrokers = \"b\"\n[kafka.settings]\n\
         \"sasl.password\" = \"{secret}\"\n"
    );
    let config = parse(&file).unwrap();
    assert!(!format!("{config:?}").contains(secret));
    assert_eq!(config.database.place(), "h:5432/d");
}

#[test]
fn secrets_come_from_a_variable_or_a_file_and_what_is_missing_is_named() {
    let file = std::env::temp_dir().join(format!("dipmo-secret-{}", std::process::id()));
    std::fs::write(&file, "s3cret\n").unwrap();
    let text = format!(
        "[kafka]\nbrokers = \"b\"\n[kafka.settings]\n\"sasl.password_file\" = {:?}\n",
        file.display().to_string()
    );
    let options = parse(&text).unwrap().kafka.unwrap().options("dipmo").unwrap();
    assert_eq!(options.settings["sasl.password"], "s3cret");
    std::fs::remove_file(&file).unwrap();
    let missing = parse("[database]\nurl_env = \"DIPMO_TEST_NOT_SET\"\n").unwrap();
    let problem = missing.database.options("t").unwrap_err();
    assert_eq!((problem.key.as_str(), problem.message.contains("DIPMO_TEST_NOT_SET")), ("database.url_env", true));
    let reserved = wrong("[kafka]\nbrokers = \"b\"\n[kafka.settings]\n\"group.id\" = \"g\"\n");
    assert!(reserved.contains("group.id is set by dipmo"), "{reserved}");
}

#[test]
fn transactional_topics_are_understood_and_nonsense_is_refused() {
    let kafka = |lines: &str| format!("[kafka]\nbrokers = \"b:9092\"\n{lines}\n");
    let config = parse(&kafka("transactional_topics = [\"orders\"]\ntransaction_timeout = \"40s\"")).unwrap();
    let options = config.kafka.unwrap().options("billing").unwrap();
    assert!(options.is_transactional("orders") && !options.is_transactional("order"));
    assert_eq!((&*options.transactional_id, options.transaction_timeout.as_secs()), ("dipmo-billing", 40));
    let all = parse(&kafka("transactional_topics = [\"*\"]\ntransactional_id = \"shop\"")).unwrap();
    let options = all.kafka.unwrap().options("dipmo").unwrap();
    assert!(options.is_transactional("orders") && options.transactional_id == "shop-dipmo");
    let cases = [
        ("transactional_topics = [\"\"]", "kafka.transactional_topics: has an empty name"),
        ("transactional_topics = [\"*\", \"a\"]", "kafka.transactional_topics: \"*\" is all topics"),
        ("transactional_topics = [\"a\", \"a\"]", "kafka.transactional_topics: names a twice"),
        ("transactional_topics = \"a\"", "kafka.transactional_topics: invalid type"),
        ("transactional_id = \"\"", "kafka.transactional_id: is empty"),
        (
            "transaction_timeout = \"15s\"\ntransactional_topics = [\"a\"]",
            "kafka.transaction_timeout: is 15s: must be at least twice the send_timeout of 10s",
        ),
        ("transactional_topic = [\"a\"]", "kafka.transactional_topic: "),
    ];
    for (lines, expected) in cases {
        let text = wrong(&kafka(lines));
        assert!(text.starts_with(&format!("dipmo.toml:3: {expected}")), "{text:?} should begin with {expected:?}");
    }
    let reserved = wrong(&kafka("[kafka.settings]\n\"transactional.id\" = \"x\""));
    assert!(reserved.contains("transactional.id is set by dipmo"), "{reserved}");
}

#[test]
fn a_certificate_authority_without_encryption_is_refused() {
    let options = |url: &str| {
        let text = format!("[database]\nurl = \"{url}\"\nca_file = \"/nowhere/ca.pem\"\n");
        parse(&text).unwrap().database.options("t").unwrap()
    };
    let open = |url: &str| dipmo::store::postgres::Db::open(options(url)).unwrap_err().to_string();
    assert!(open("postgres://u@h/d").contains("does not say sslmode=require"));
    assert!(open("postgres://u@h/d?sslmode=require").contains("CA file /nowhere/ca.pem"));
}

#[test]
fn arbitrary_bytes_never_panic() {
    let seed: u64 = rand::rng().random();
    let mut rng: rand::rngs::StdRng = rand::SeedableRng::seed_from_u64(seed);
    for _ in 0..20_000 {
        let mut bytes = vec![0u8; rng.random_range(0..200)];
        rng.fill_bytes(&mut bytes);
        let _ = Config::parse(&bytes, "f");
    }
    // Real text with a few bytes changed reaches much deeper than noise.
    for _ in 0..3_000 {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        for _ in 0..rng.random_range(1..6) {
            let at = rng.random_range(0..bytes.len());
            match rng.random_range(0..3) {
                0 => bytes[at] = rng.random(),
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"=[]{}\".\n#"[rng.random_range(0..9)]),
            }
        }
        let parsed = std::panic::catch_unwind(|| drop(Config::parse(&bytes, "f")));
        assert!(parsed.is_ok(), "seed {seed}: {}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn a_token_that_cannot_work_is_refused_where_it_stands_and_never_shown() {
    let token = |more: &str| format!("[[api.tokens]]\nname = \"ann\"\nrole = \"operator\"\n{more}\n");
    let digest = "0".repeat(64);
    assert!(parse(&token(&format!("token_sha256 = \"{digest}\""))).is_ok());
    let cases = [
        (token("token_sha256 = \"hunter2\""), "dipmo.toml:4: api.tokens[0].token_sha256: must be the SHA-256"),
        (token("token_sha256 = [\"hunter2\"]"), "dipmo.toml:4: api.tokens[0].token_sha256: has the wrong form"),
        (token(""), "dipmo.toml:1: api.tokens[0]: give one of token_sha256, token_env and token_file"),
        (token("token_env = \"A\"\ntoken_file = \"b\""), "dipmo.toml:1: api.tokens[0]: give one of"),
        (token("token = \"hunter2\""), "dipmo.toml:4: api.tokens[0].token: has the wrong form"),
        (
            token("token_env = \"A\"").replace("operator", "king"),
            "dipmo.toml:3: api.tokens[0].role: unknown variant `king`",
        ),
        (token("token_env = \"A\"").replace("ann", ""), "dipmo.toml:2: api.tokens[0].name: must have 1 to 100"),
        (token("token_env = \"A\"").repeat(2), "dipmo.toml:6: api.tokens[1].name: there is another token named"),
        ("[api]\nbody_max_bytes = 1\n".to_owned(), "dipmo.toml:2: api.body_max_bytes: must be 1024 to"),
        ("[api]\nconcurrency = 0\n".to_owned(), "dipmo.toml:2: api.concurrency: must be 1 to 1000"),
        ("[sagas]\nfiles = [\"*/a.toml\"]\n".to_owned(), "dipmo.toml:2: sagas.files[0]: \"*/a.toml\": `*` may stand"),
    ];
    for (file, expected) in &cases {
        let text = wrong(file);
        assert!(text.starts_with(expected), "{text:?} should begin with {expected:?}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    let config = parse(&token("token_sha256 = \"DIGEST\"").replace("DIGEST", &digest)).unwrap();
    assert!(!format!("{config:?} {:?}", config.api.tokens().unwrap()).contains(&digest), "{config:?}");
}

#[test]
fn a_worker_that_cannot_be_called_is_refused_with_the_reason() {
    let worker = |more: &str| format!("[[worker]]\nname = \"fx\"\nqueues = [\"FX.Q\"]\n{more}\n");
    let url = "url = \"http://127.0.0.1:8081/commands\"";
    let fine = parse(&worker(url)).unwrap();
    assert_eq!((&*fine.worker[0].place(), fine.worker[0].concurrency), ("http://127.0.0.1:8081/commands", 4));
    let cases = [
        ("url = \"https://fx/commands\"".to_owned(), "dipmo.toml:4: worker[0].url: https is not spoken here"),
        ("url = \"http://ann:sesame@fx/\"".to_owned(), "dipmo.toml:4: worker[0].url: holds a user or password"),
        ("url = \"fx:8081\"".to_owned(), "dipmo.toml:4: worker[0].url: must be of the form"),
        (format!("{url}\ntimeout = \"1m\""), "dipmo.toml:5: worker[0].timeout: must be more than 0s and at most 25s"),
        (format!("{url}\nconcurrency = 0"), "dipmo.toml:5: worker[0].concurrency: must be 1 to 64"),
        (format!("{url}\nconcurrency = 16"), "dipmo.toml:5: worker[0].concurrency: the workers make up to 16 calls"),
        (format!("{url}\ntoken_env = \"A\"\ntoken_file = \"b\""), "dipmo.toml:5: worker[0].token_env: give one of"),
        (format!("{url}\n{}", worker(url)), "dipmo.toml:6: worker[1].name: there is another worker or consumer"),
    ];
    for (more, expected) in cases {
        let text = wrong(&worker(&more));
        assert!(text.starts_with(expected) && !text.contains("sesame"), "{text}");
    }
}
