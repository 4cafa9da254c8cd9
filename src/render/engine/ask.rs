// SPDX-License-Identifier: Apache-2.0
//! What templates ask of the world while they render: `lookup` and `getHostByName`.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{net::lookup_host, time::timeout};

use super::{Lookup, wire};

/// A question of the engine, on behalf of one request; exactly one part is set.
#[derive(Debug, Deserialize)]
pub struct Question {
    lookup: Option<Wanted>,
    host: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wanted {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
}

/// Answers the questions of one request.
pub struct Oracle {
    pub lookup: Arc<dyn Lookup>,
    pub dns: bool,
}

impl fmt::Debug for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oracle").field("dns", &self.dns).finish_non_exhaustive()
    }
}

/// Finds out, within `limit`, and gives the frame that tells the engine.
pub async fn reply(id: u64, question: Question, oracle: Option<Arc<Oracle>>, limit: Duration) -> Vec<u8> {
    #[derive(Serialize)]
    struct Reply {
        // First, so that the engine tells it from a request without reading it all.
        reply: u64,
        value: Option<Value>,
        error: Option<String>,
    }
    let found = match oracle {
        Some(oracle) => oracle.answer(question, limit).await,
        None => Err("this request may not ask".to_owned()),
    };
    let (value, error) = match found {
        Ok(value) => (value, None),
        Err(error) => (None, Some(error)),
    };
    wire::frame(&Reply { reply: id, value, error }).unwrap_or_else(|error| {
        let error = Some(format!("the answer is too large: {error}"));
        wire::frame(&Reply { reply: id, value: None, error }).expect("one sentence is below the limit")
    })
}

impl Oracle {
    async fn answer(&self, question: Question, limit: Duration) -> Result<Option<Value>, String> {
        match question {
            Question { lookup: Some(wanted), .. } => {
                let Wanted { api_version, kind, namespace, name } = &wanted;
                timeout(limit, self.lookup.lookup(api_version, kind, namespace, name)).await.map_err(
                    |_| format!("no answer within {limit:?} about {api_version} {kind} {namespace}/{name}"),
                )?
            }
            Question { host: Some(name), .. } if self.dns => {
                let mut addresses = timeout(limit, lookup_host((name.as_str(), 0)))
                    .await
                    .map_err(|_| format!("the name {name} was not resolved within {limit:?}"))?
                    .map_err(|error| format!("cannot resolve the name {name}: {error}"))?;
                Ok(addresses.next().map(|address| Value::String(address.ip().to_string())))
            }
            Question { .. } => Err("this request may not ask that".to_owned()),
        }
    }
}
