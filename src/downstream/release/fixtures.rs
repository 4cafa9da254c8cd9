// SPDX-License-Identifier: Apache-2.0
//! Records and stores for tests.

use chrono::{TimeZone, Utc};
use serde_json::{Value, json};

use super::{Info, Record, Release, Status, Store, decode, encode};
use crate::{api::keys, downstream::server::Server};

/// A record in the making: release `app` in namespace `ns`, bundle `b`.
pub(crate) struct Draft {
    release: Release,
    annotations: Value,
    readable: bool,
    version: String,
}

/// Revision `revision` with this status.
pub(crate) fn record(revision: u32, status: &str) -> Draft {
    let info = Info { status: Status::from(status), ..Info::default() };
    let chart = json!({"metadata": {"name": "b", "annotations": {keys::BUNDLE_ID: "b"}}});
    let release = Release {
        name: "app".into(),
        namespace: "ns".into(),
        version: revision,
        info,
        chart,
        apply_method: "ssa".into(),
        ..Release::default()
    };
    Draft { release, annotations: json!({}), readable: true, version: format!("{}", 100 + revision) }
}

impl Draft {
    pub(crate) fn manifest(mut self, text: &str) -> Self {
        self.release.manifest = text.into();
        self
    }
    pub(crate) fn described(mut self, text: &str) -> Self {
        self.release.info.description = text.into();
        self
    }
    pub(crate) fn stamped(mut self, stamp: &str) -> Self {
        self.annotations[keys::EPOCH_ANNOTATION] = json!(stamp);
        self
    }
    pub(crate) fn guarded(mut self, guard: &str) -> Self {
        self.annotations[keys::GUARD_ANNOTATION] = json!(guard);
        self
    }
    pub(crate) fn of(mut self, bundle: &str) -> Self {
        self.release.chart["metadata"]["annotations"][keys::BUNDLE_ID] = json!(bundle);
        self
    }
    pub(crate) fn annotated(mut self, key: &str, value: &str) -> Self {
        self.release.chart["metadata"]["annotations"][key] = json!(value);
        self
    }
    pub(crate) fn hooked(mut self, hooks: Value) -> Self {
        self.release.hooks = Some(hooks);
        self
    }
    pub(crate) fn unreadable(mut self) -> Self {
        self.readable = false;
        self
    }
    pub(crate) fn at(mut self, version: &str) -> Self {
        self.version = version.into();
        self
    }

    /// The Secret, as the server holds it.
    pub(crate) fn secret(mut self) -> Value {
        use base64::Engine;
        let name = secret(self.release.version);
        let payload = encode(&mut self.release).expect("small");
        let payload = if self.readable { payload } else { b"%".to_vec() };
        json!({"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
            "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"),
                "resourceVersion": self.version, "annotations": self.annotations,
                "labels": {"name": "app", "owner": "helm", "status": self.release.info.status.as_str(),
                    "version": self.release.version.to_string()}},
            "data": {"release": base64::engine::general_purpose::STANDARD.encode(payload)}})
    }

    /// The record, as it is read.
    pub(crate) fn stored(self) -> Record {
        Record::read(serde_json::from_value(self.secret()).expect("a Secret")).expect("a release record")
    }
}

/// A history with these statuses, revisions from 1.
pub(crate) fn history(statuses: &[&str]) -> Vec<Record> {
    statuses.iter().zip(1..).map(|(status, revision)| record(revision, status).stored()).collect()
}

/// The name of release `app`'s record.
pub(crate) fn secret(revision: u32) -> String {
    format!("sh.helm.release.v1.app.v{revision}")
}

/// The path of release `app`'s record.
pub(crate) fn secret_path(revision: u32) -> String {
    format!("/api/v1/namespaces/ns/secrets/{}", secret(revision))
}

/// The release inside a Secret that was sent.
pub(crate) fn sent_release(secret: &Value) -> Release {
    use base64::Engine;
    let data = secret["data"]["release"].as_str().expect("a payload");
    decode(&base64::engine::general_purpose::STANDARD.decode(data).expect("base64")).expect("a release")
}

/// A store with a clock that stands still.
pub(crate) fn store(server: Server) -> Store {
    let noon = Utc.with_ymd_and_hms(2026, 8, 22, 12, 0, 0).single().expect("a time");
    Store::new(server, std::sync::Arc::new(move || noon))
}
