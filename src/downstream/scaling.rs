// SPDX-License-Identifier: Apache-2.0
//! Whether the replicas of an object are an autoscaler's business at this moment.

use serde_json::Value;

use super::{
    Downstream,
    server::{ListOf, RequestError},
};
use crate::monitor::{Key, drift};

/// Whether an autoscaler of the namespace targets the object and allows what it has. `None` when it cannot be told:
/// autoscalers are not served, or not to us.
pub(super) async fn is_delegated(
    ctx: &Downstream,
    key: &Key,
    live: &Value,
) -> Result<Option<bool>, RequestError> {
    if key.namespace.is_empty() {
        return Ok(Some(false));
    }
    let Some(kind) = ctx.kinds.known("autoscaling/v2", "HorizontalPodAutoscaler") else { return Ok(None) };
    match ctx.server.get::<ListOf<Value>>(&kind.collection(&key.namespace)).await {
        Ok(list) => Ok(Some(drift::is_delegated(&list.items, key, live))),
        Err(error) if error.status().is_some_and(|status| matches!(status.code, 403 | 404)) => Ok(None),
        Err(error) => Err(error),
    }
}
