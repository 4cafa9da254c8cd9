// SPDX-License-Identifier: Apache-2.0
//! A scripted API server: exact requests, in order. Each exchange says which request must come next and what is
//! answered; the script fails the test on another request, on an extra one and on a missing one.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Downstream, kinds::KindCache, release::Store, server::Server};
use crate::telemetry::scripted;

type Check = Box<dyn Fn(&Value) + Send>;

/// One expected request and its answer.
pub(crate) struct Exchange {
    method: Method,
    path: String,
    status: u16,
    answer: Value,
    check: Option<Check>,
}

impl Exchange {
    fn new(method: Method, path: &str) -> Self {
        Self { method, path: path.to_owned(), status: 200, answer: json!({}), check: None }
    }

    /// Expects a GET. A path with a query is compared whole, one without only as far as the query.
    pub(crate) fn get(path: &str) -> Self {
        Self::new(Method::GET, path)
    }
    pub(crate) fn post(path: &str) -> Self {
        let mut exchange = Self::new(Method::POST, path);
        exchange.status = 201;
        exchange
    }
    pub(crate) fn put(path: &str) -> Self {
        Self::new(Method::PUT, path)
    }
    pub(crate) fn patch(path: &str) -> Self {
        Self::new(Method::PATCH, path)
    }
    pub(crate) fn delete(path: &str) -> Self {
        Self::new(Method::DELETE, path)
    }

    /// Looks at the request's JSON body.
    pub(crate) fn expecting(mut self, check: impl Fn(&Value) + Send + 'static) -> Self {
        self.check = Some(Box::new(check));
        self
    }

    /// Answers with this object.
    pub(crate) fn answers(mut self, answer: Value) -> Self {
        self.answer = answer;
        self
    }

    /// Answers with the request's own body, under this uid and resourceVersion.
    pub(crate) fn stores(mut self, uid: &str, version: &str) -> Self {
        self.answer = json!({"$stored": {"uid": uid, "resourceVersion": version}});
        self
    }

    /// Answers with the body of the last write before this, under this uid and resourceVersion.
    pub(crate) fn answers_sent(mut self, uid: &str, version: &str) -> Self {
        self.answer = json!({"$sent": {"uid": uid, "resourceVersion": version}});
        self
    }

    /// Answers with a `Status` of this code, reason and message.
    pub(crate) fn refuses(mut self, code: u16, reason: &str, message: &str) -> Self {
        self.status = code;
        self.answer = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": reason, "message": message});
        self
    }

    /// 409 because the object changed since it was read, or exists.
    pub(crate) fn conflicts(self) -> Self {
        self.refuses(
            409,
            "Conflict",
            "the object has been modified; please apply your changes to the latest version",
        )
    }

    /// 404 for the object.
    pub(crate) fn missing(self) -> Self {
        self.refuses(404, "NotFound", "not found")
    }
}

/// The running script.
pub(crate) struct Script {
    task: JoinHandle<()>,
}

impl Script {
    /// Passes when every exchange took place and no other. Drop the client's users before, or leave them: an extra
    /// request was answered with 500 and is reported here.
    pub(crate) async fn finished(self) {
        let limit = Duration::from_secs(5);
        tokio::time::timeout(limit, self.task)
            .await
            .expect("an exchange did not take place")
            .expect("script");
    }
}

/// A server that plays these exchanges.
pub(crate) fn scripted(exchanges: Vec<Exchange>) -> (Server, Script) {
    let (client, mut server) = scripted::client();
    let task = tokio::spawn(async move {
        let mut sent = Value::Null;
        for (number, exchange) in exchanges.into_iter().enumerate() {
            let call = server.try_next().await.unwrap_or_else(|| {
                panic!("exchange {number} did not take place: {} {}", exchange.method, exchange.path)
            });
            let seen = if exchange.path.contains('?') { &call.uri } else { &call.path };
            assert_eq!(
                (call.method.as_str(), seen.as_str()),
                (exchange.method.as_str(), exchange.path.as_str()),
                "exchange {number}"
            );
            if let Some(check) = exchange.check {
                check(&call.body);
            }
            if !call.body.is_null() {
                sent.clone_from(&call.body);
            }
            let echo = exchange.answer.get("$stored").or_else(|| exchange.answer.get("$sent"));
            let answer = match echo {
                Some(stored) => {
                    let mut object = sent.clone();
                    for (key, value) in stored.as_object().expect("an object") {
                        object["metadata"][key] = value.clone();
                    }
                    object
                }
                None => exchange.answer,
            };
            call.answer(exchange.status, &answer);
        }
        // Whatever still comes would be an extra request; the mock answers it with an error when dropped.
        let extra = tokio::time::timeout(Duration::from_millis(1), server.try_next()).await;
        if let Ok(Some(call)) = extra {
            panic!("an extra request: {} {}", call.method, call.uri);
        }
    });
    (Server::new(client, Duration::from_secs(2)), Script { task })
}

/// The two requests of aggregated discovery, with the usual kinds and these: (group, version, plural, kind, scope).
pub(crate) fn discovery(more: &[(&str, &str, &str, &str, &str)]) -> Vec<Exchange> {
    let resource = |plural: &str, group: &str, version: &str, kind: &str, scope: &str| {
        json!({"resource": plural, "scope": scope, "verbs": ["get", "list", "patch", "watch"],
            "responseKind": {"group": group, "version": version, "kind": kind}})
    };
    let core = ["ConfigMap", "Secret", "Service", "ServiceAccount"]
        .map(|kind| resource(&format!("{}s", kind.to_lowercase()), "", "v1", kind, "Namespaced"));
    let mut core = core.to_vec();
    core.push(resource("namespaces", "", "v1", "Namespace", "Cluster"));
    let group = |name: &str, version: &str, resources: Vec<Value>| {
        json!({"metadata": {"name": name}, "versions": [{"version": version, "resources": resources,
            "freshness": "Current"}]})
    };
    let crd = "apiextensions.k8s.io";
    let mut groups = vec![
        group("apps", "v1", vec![resource("deployments", "apps", "v1", "Deployment", "Namespaced")]),
        group(
            crd,
            "v1",
            vec![resource("customresourcedefinitions", crd, "v1", "CustomResourceDefinition", "Cluster")],
        ),
    ];
    for (name, version, plural, kind, scope) in more {
        groups.push(group(name, version, vec![resource(plural, name, version, kind, scope)]));
    }
    let list = |items: Vec<Value>| json!({"kind": "APIGroupDiscoveryList", "items": items});
    vec![
        Exchange::get("/api").answers(list(vec![group("", "v1", core)])),
        Exchange::get("/apis").answers(list(groups)),
    ]
}

/// A downstream cluster behind `server` whose usual kinds are known already.
pub(crate) fn context(server: Server) -> Downstream {
    let noon = chrono::DateTime::from_timestamp(1_787_400_000, 0).expect("a time");
    let store = Store::new(server.clone(), std::sync::Arc::new(move || noon));
    let kinds = KindCache::new(server.clone());
    for (api_version, kind, plural, namespaced) in [
        ("v1", "ConfigMap", "configmaps", true),
        ("v1", "Secret", "secrets", true),
        ("v1", "Namespace", "namespaces", false),
        ("apps/v1", "Deployment", "deployments", true),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", false),
    ] {
        kinds.learn(api_version, kind, plural, namespaced);
    }
    Downstream { agent: server.clone(), server, kinds, store }
}
