// SPDX-License-Identifier: Apache-2.0
//! The second chance: requests that were in flight when the engine died or hung run one by one in a process of their
//! own. If that one goes the same way, the request is why, and fails. Others are served meanwhile.

use std::{collections::VecDeque, path::PathBuf, time::Duration};

use tokio::sync::mpsc;
use tracing::debug;

use super::{
    EngineConfig, EngineError,
    process::Process,
    session::{Call, End, Session},
};

/// The process ends when there was nothing to do for so long; it holds memory.
const IDLE: Duration = Duration::from_secs(5);

/// Runs until the queue is closed.
pub async fn run(config: EngineConfig, binary: PathBuf, mut queue: mpsc::Receiver<Call>) {
    while let Some(call) = queue.recv().await {
        let mut process = match Process::start(&binary, config.memory, config.deadline, 1).await {
            Ok(process) => process,
            Err(reason) => {
                let _ = call.reply.send(Err(EngineError::Unavailable { reason }));
                continue;
            }
        };
        debug!(pid = process.pid(), id = call.id, "engine started for requests that may have ended another");
        let mut session = Session::new(config.deadline, config.patience);
        let mut first = VecDeque::from([call]);
        let end = session.serve(&mut process, &mut first, &mut queue, 1, Some(IDLE)).await;
        let left = session.left(&end);
        for call in left.suspects.into_iter().chain(left.innocent) {
            let _ = call.reply.send(Err(match &end {
                End::Died(ended) => {
                    EngineError::Crashed { status: ended.to_string(), by_itself: ended.by_itself }
                }
                End::Overran | End::Unused => EngineError::Overran { deadline: config.deadline },
            }));
        }
    }
}
