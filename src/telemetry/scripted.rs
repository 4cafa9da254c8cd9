// SPDX-License-Identifier: Apache-2.0
//! A scripted API server for unit tests: the test sees each request in turn and answers it.

use http::{Request, Response};
use kube::client::Body;
use serde_json::Value;
use tower_test::mock::{self, SendResponse};

/// A client, and the script's end of it.
pub(crate) fn client() -> (kube::Client, Server) {
    let (service, handle) = mock::pair::<Request<Body>, Response<Body>>();
    (kube::Client::new(service, "default"), Server(handle))
}

pub(crate) struct Server(mock::Handle<Request<Body>, Response<Body>>);

impl Server {
    /// The next request; panics when the client is gone.
    pub async fn next(&mut self) -> Call {
        self.try_next().await.expect("a request was expected, but the client is gone")
    }

    /// The next request; `None` when the client is gone.
    pub async fn try_next(&mut self) -> Option<Call> {
        let (request, reply) = self.0.next_request().await?;
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.expect("request bodies are in memory");
        Some(Call {
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            uri: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            user: parts
                .headers
                .get("impersonate-user")
                .and_then(|user| user.to_str().ok())
                .unwrap_or_default()
                .to_owned(),
            reply,
        })
    }
}

/// One request, waiting for its answer. Dropping it is a broken connection.
pub(crate) struct Call {
    pub method: String,
    pub path: String,
    pub query: String,
    /// Path and query as sent.
    pub uri: String,
    pub body: Value,
    /// As whom it is made; empty for the client itself.
    pub user: String,
    reply: SendResponse<Response<Body>>,
}

impl Call {
    /// `POST /api/v1/…`, for assertions.
    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    pub fn answer(self, code: u16, body: &Value) {
        let body = Body::from(serde_json::to_vec(body).expect("a Value always encodes"));
        self.reply.send_response(Response::builder().status(code).body(body).expect("code is a valid one"));
    }

    /// Answers with a watch's body, one event a line, and ends it.
    pub fn lines(self, events: &[Value]) {
        let text: String = events.iter().map(|event| format!("{event}\n")).collect();
        self.reply.send_response(Response::new(Body::from(text.into_bytes())));
    }

    /// Answers with what was sent, under a new resourceVersion.
    pub fn accept(self, version: &str) {
        let mut body = self.body.clone();
        body["metadata"]["resourceVersion"] = version.into();
        self.answer(200, &body);
    }

    /// Answers with a failed `Status`.
    pub fn refuse(self, code: u16, reason: &str) {
        let status = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "scripted refusal", "reason": reason, "code": code,
        });
        self.answer(code, &status);
    }
}
