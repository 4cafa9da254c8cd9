// SPDX-License-Identifier: Apache-2.0
//! The writes: one PATCH of the status subresource each, and what the answer means.

use kube::api::{Patch, PatchParams};
use serde_json::Value;

use super::{REQUEST_TIMEOUT, Upstream};
use crate::{api::BundleDeployment, telemetry::chain};

/// What became of a write.
#[derive(Debug)]
pub enum Answer {
    /// Done; the object as it is now.
    Written(Box<BundleDeployment>),
    /// The precondition failed: a live read tells what stands there.
    Conflict,
    /// The object is gone.
    Absent,
    /// Nobody knows: timeout, server error, connection lost. A live read tells.
    Unclear(String),
    /// Refused for good: forbidden, invalid.
    Denied(String),
    /// Larger than the server or its storage takes.
    TooLarge,
}

impl Upstream {
    /// Sends one status patch. It must carry the object's uid and resourceVersion; nothing here retries.
    pub async fn patch_status(&self, name: &str, patch: &Value) -> Answer {
        debug_assert!(
            patch["metadata"]["resourceVersion"].is_string(),
            "a status write without its precondition"
        );
        let params = PatchParams::default();
        let patch = Patch::Merge(patch);
        let bundle_deployments = self.bundle_deployments();
        match self.noted(bundle_deployments.patch_status(name, &params, &patch)).await {
            Ok(Ok(bd)) => Answer::Written(Box::new(bd)),
            Ok(Err(error)) => classify(error, name),
            Err(_) => Answer::Unclear(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())),
        }
    }
}

fn classify(error: kube::Error, name: &str) -> Answer {
    let kube::Error::Api(status) = &error else {
        return Answer::Unclear(chain(&error));
    };
    // etcd's own limit comes back as a 500 with this text, the API server's as 413.
    let too_large = status.code == 413
        || ["too large", "larger than max"].iter().any(|words| status.message.contains(words));
    match status.code {
        _ if too_large => Answer::TooLarge,
        409 => Answer::Conflict,
        // Not done, and not refused for good: the credentials are exchanged, and a live read tells what stands there.
        401 => Answer::Unclear(status.message.clone()),
        404 if super::names_the_object(status, name) => Answer::Absent,
        400 | 403 | 405 | 415 | 422 => Answer::Denied(status.message.clone()),
        _ => Answer::Unclear(status.message.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api_error(code: u16, message: &str) -> kube::Error {
        let status = kube::core::Status { code, message: message.into(), ..Default::default() };
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn answers_are_told_apart_by_what_is_known_after_them() {
        let cases = [
            (409, "the object has been modified", "Conflict"),
            // A plain 404 is a removed CRD or group: an outage.
            (404, "the server could not find the requested resource", "Unclear"),
            (401, "Unauthorized", "Unclear"),
            (403, "forbidden", "Denied"),
            (422, "invalid", "Denied"),
            (429, "slow down", "Unclear"),
            (503, "down", "Unclear"),
            (504, "timeout", "Unclear"),
            (413, "request entity too large", "TooLarge"),
            (500, "etcdserver: request is too large", "TooLarge"),
        ];
        for (code, message, expected) in cases {
            let answer = format!("{:?}", classify(api_error(code, message), "app"));
            assert!(answer.starts_with(expected), "{code}: {answer}");
        }
    }
}
