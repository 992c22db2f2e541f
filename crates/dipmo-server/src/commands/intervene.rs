//! Moving sagas by hand: `dipmo process pause` and the like, `dipmo dlq resubmit`.

use dipmo::operator::sagas::{Intervention, intervene, resubmit_dead_letter};

use super::{Context, change, changed, confirm};
use crate::cli::{InterveneArgs, Wish};
use crate::definitions;
use crate::exit::{Exit, Quit};

pub(super) async fn run(context: &Context, wish: Wish) -> Result<Exit, Quit> {
    let Wish { verb, args, dangerous } = wish;
    let by = change(&args.change)?;
    if dangerous && !args.dry_run {
        confirm(&args.change, &format!("{} saga {}", verb.name(), args.id))?;
    }
    let (db, config) = (context.db()?, &context.config.sagas);
    let sagas = definitions::stored(&db, config).await?;
    let intervention =
        Intervention { seen_version: args.seen_version, ..Intervention::new(args.id, verb).dry_run(args.dry_run) };
    changed(context.format, &intervene(&db, &sagas, &config.consumer, &intervention, &by).await?)?;
    Ok(Exit::Ok)
}

/// `id` is that of the command.
pub(super) async fn resubmit(context: &Context, args: InterveneArgs) -> Result<Exit, Quit> {
    let by = change(&args.change)?;
    let (db, config) = (context.db()?, &context.config.sagas);
    let sagas = definitions::stored(&db, config).await?;
    let done = resubmit_dead_letter(&db, &sagas, &config.consumer, (args.id, args.dry_run), &by).await?;
    changed(context.format, &done)?;
    Ok(Exit::Ok)
}
