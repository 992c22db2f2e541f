//! Every SQL statement in the source prepares on a freshly migrated schema, and claims use an index.

use std::path::{Path, PathBuf};

use crate::support::World;

/// SQL constants begin with a line that names them.
fn statements() -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let mut found = Vec::new();
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        for part in source.split("str = \"\n-- ").skip(1) {
            let sql = &part[..part.find("\";").unwrap()];
            let name = sql.lines().next().unwrap().to_owned();
            found.push((name, sql.replace("\\\"", "\"")));
        }
    }
    found
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[tokio::test]
async fn every_statement_prepares_on_a_fresh_schema() {
    let world = World::new().await;
    let client = world.db.client().await.unwrap();
    let statements = statements();
    assert!(statements.len() > 40, "found only {}", statements.len());
    let version = "select current_setting('server_version_num')::integer";
    let server: i32 = client.query_one(version, &[]).await.unwrap().get(0);
    for (name, sql) in statements {
        // A statement for later servers says from which version on.
        if name.split_once(" since ").is_some_and(|(_, since)| since.parse::<i32>().unwrap() > server) {
            continue;
        }
        let sql = format!("-- {}", sql.replace("dipmo.", &format!("{}.", world.db.schema())));
        // Several commands in one text cannot be prepared: they are run.
        let outcome = if sql.trim_end().trim_end_matches(';').contains(';') {
            client.batch_execute(&format!("begin; {sql}; rollback")).await
        } else {
            client.prepare(&sql).await.map(drop)
        };
        outcome.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    }
}

#[tokio::test]
async fn claims_find_their_rows_by_an_index() {
    let world = World::new().await;
    world
        .execute(
            "insert into dipmo.inbox_work (id, consumer_id, bucket, key, state)
             select n, 1, n % 16, 'k' || n, 'RECEIVED' from generate_series(1, 20000) n; analyze dipmo.inbox_work",
        )
        .await;
    let (_, find) = statements().into_iter().find(|(name, _)| name == "claim.find_received").unwrap();
    let sql = format!("explain -- {}", find.replace("$1", "1").replace("$2", "'{1,2,3}'").replace("$3", "100"));
    let plan = world.texts(&sql).await.join("\n");
    assert!(plan.contains("inbox_work_claim"), "{plan}");
    assert!(!plan.contains("Seq Scan on inbox_work"), "{plan}");
}
