// SPDX-License-Identifier: Apache-2.0
//! An API server that answers by a closure and notes what it was asked.

use std::sync::{Arc, Mutex};

use kube::Client;
use serde_json::{Value, json};

use crate::telemetry::scripted;

/// `(status, body)`.
pub type Answer = (u16, Value);

/// What was asked: method, path with query, body (null if none).
pub type Asked = (String, String, Value);

/// A client whose requests `answer` answers, and the list of them.
pub fn client(mut answer: impl FnMut(&Asked) -> Answer + Send + 'static) -> (Client, Arc<Mutex<Vec<Asked>>>) {
    let (client, mut server) = scripted::client();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    tokio::spawn(async move {
        while let Some(call) = server.try_next().await {
            let asked = (call.method.clone(), call.uri.clone(), call.body.clone());
            let (status, body) = answer(&asked);
            log.lock().unwrap().push(asked);
            call.answer(status, &body);
        }
    });
    (client, asked)
}

/// The server's refusal.
pub fn refusal(code: u16, reason: &str, kind: &str) -> Answer {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "metadata": {},
        "message": format!("{kind} says {reason}"), "reason": reason, "code": code,
        "details": {"kind": kind, "name": "x", "group": "fleet.cattle.io"},
    });
    (code, status)
}

/// `METHOD path`, one a request.
pub fn lines(asked: &Arc<Mutex<Vec<Asked>>>) -> Vec<String> {
    asked.lock().unwrap().iter().map(|(method, path, _)| format!("{method} {path}")).collect()
}
