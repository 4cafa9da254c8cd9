// SPDX-License-Identifier: Apache-2.0
//! Any object of the API server by its kind, as plain JSON.

use std::collections::BTreeMap;
use std::sync::Mutex;

use anyhow::Context;
use http::Request;
use kube::Client;
use serde_json::Value;

/// A client that knows where each kind lives.
pub struct Server {
    client: Client,
    // Resource name, and whether it is in namespaces, by apiVersion and kind. Only what exists is remembered.
    kinds: Mutex<BTreeMap<(String, String), (String, bool)>>,
}

impl Server {
    /// With an administrator's client.
    pub fn new(client: Client) -> Server {
        Server { client, kinds: Mutex::default() }
    }

    /// The body, or `None` for 404.
    pub async fn get(&self, path: &str) -> anyhow::Result<Option<Value>> {
        let request = Request::get(path).body(Vec::new())?;
        match self.client.request::<Value>(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            answer => Ok(Some(answer.with_context(|| format!("GET {path}"))?)),
        }
    }

    /// Deletes; not found is fine.
    pub async fn delete(&self, path: &str) -> anyhow::Result<()> {
        let request = Request::delete(path).body(Vec::new())?;
        match self.client.request::<Value>(request).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            answer => answer.map(drop).with_context(|| format!("DELETE {path}")),
        }
    }

    /// POSTs; with `may_exist`, "already exists" is fine.
    pub async fn create(&self, path: &str, object: &Value, may_exist: bool) -> anyhow::Result<()> {
        match self.send("POST", path, object, "application/json").await {
            Err(kube::Error::Api(status)) if may_exist && status.code == 409 => Ok(()),
            answer => answer.map(drop).with_context(|| format!("POST {path}")),
        }
    }

    /// PATCHes with the content type `application/<kind>-patch+json`.
    pub async fn patch(&self, path: &str, kind: &str, patch: &Value) -> anyhow::Result<()> {
        let content_type = format!("application/{kind}+json");
        self.send("PATCH", path, patch, &content_type)
            .await
            .map(drop)
            .with_context(|| format!("PATCH {path}"))
    }

    /// Reads, changes and writes back until nobody wrote in between.
    pub async fn change(&self, path: &str, change: impl Fn(&mut Value)) -> anyhow::Result<()> {
        loop {
            let mut object = self.get(path).await?.with_context(|| format!("{path} does not exist"))?;
            change(&mut object);
            match self.send("PUT", path, &object, "application/json").await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                answer => return answer.map(drop).with_context(|| format!("PUT {path}")),
            }
        }
    }

    async fn send(&self, method: &str, path: &str, body: &Value, content_type: &str) -> kube::Result<Value> {
        let request = Request::builder().method(method).uri(path).header("Content-Type", content_type);
        let request = request.body(body.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }

    /// Where objects of a kind are, or one of them with `name`; `None` when the server does not know the kind.
    pub async fn path(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: Option<&str>,
    ) -> anyhow::Result<Option<String>> {
        let group = if api_version.contains('/') { "apis" } else { "api" };
        let Some((resource, namespaced)) = self.resource(group, api_version, kind).await? else {
            return Ok(None);
        };
        let mut path = format!("/{group}/{api_version}");
        if namespaced {
            let namespace = if namespace.is_empty() { "default" } else { namespace };
            path += &format!("/namespaces/{namespace}");
        }
        path += &format!("/{resource}");
        if let Some(name) = name {
            path += &format!("/{}", escaped(name));
        }
        Ok(Some(path))
    }

    async fn resource(
        &self,
        group: &str,
        api_version: &str,
        kind: &str,
    ) -> anyhow::Result<Option<(String, bool)>> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(known) = self.lock().get(&key) {
            return Ok(Some(known.clone()));
        }
        let Some(list) = self.get(&format!("/{group}/{api_version}")).await? else { return Ok(None) };
        let mut kinds = self.lock();
        for resource in list["resources"].as_array().into_iter().flatten() {
            let name = resource["name"].as_str().unwrap_or_default();
            if !name.contains('/') {
                let kind = resource["kind"].as_str().unwrap_or_default().to_owned();
                let namespaced = resource["namespaced"] == true;
                kinds.insert((api_version.to_owned(), kind), (name.to_owned(), namespaced));
            }
        }
        Ok(kinds.get(&key).cloned())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, String), (String, bool)>> {
        self.kinds.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Names of RBAC objects may contain what a path may not.
fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace(' ', "%20")
}
