//! The one-page answer to "how is it going".

use serde::Serialize;

use crate::error::Result;
use crate::store::postgres::Db;
use crate::store::postgres::operator::look;
use crate::store::postgres::operator_status::{
    self as store, ConsumerStatus, ExceptionStatus, LaneStatus, NodeStatus, ProcessStatus,
};

/// Consumers, lanes, exceptions, nodes and processes, read at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    pub consumers: Vec<ConsumerStatus>,
    pub lanes: Vec<LaneStatus>,
    pub exceptions: Vec<ExceptionStatus>,
    pub nodes: Vec<NodeStatus>,
    pub processes: Vec<ProcessStatus>,
}

pub async fn status(db: &Db) -> Result<Status> {
    let mut client = db.client().await?;
    let tx = look(&mut client).await?;
    Ok(Status {
        consumers: store::consumers(db, &tx).await?,
        lanes: store::lanes(db, &tx).await?,
        exceptions: store::exceptions(db, &tx).await?,
        nodes: store::nodes(db, &tx).await?,
        processes: store::processes(db, &tx).await?,
    })
}
