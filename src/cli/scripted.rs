// SPDX-License-Identifier: Apache-2.0
//! An API server that answers by a closure and notes what it was asked.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::{Value, json};

/// `(status, body)`.
pub type Answer = (u16, Value);

/// What was asked: method, path with query, body (null if none).
pub type Asked = (String, String, Value);

/// A client whose requests `answer` answers, and the list of them.
pub fn client(mut answer: impl FnMut(&Asked) -> Answer + Send + 'static) -> (Client, Arc<Mutex<Vec<Asked>>>) {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    tokio::spawn(async move {
        while let Some((request, respond)) = handle.next_request().await {
            let (parts, body) = request.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&bytes).unwrap_or_default();
            let path = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
            let asked = (parts.method.to_string(), path, body);
            let (status, body) = answer(&asked);
            log.lock().unwrap().push(asked);
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            respond.send_response(Response::builder().status(status).body(body).unwrap());
        }
    });
    (Client::new(service, "default"), asked)
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
