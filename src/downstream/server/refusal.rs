// SPDX-License-Identifier: Apache-2.0
//! Why a request brought no usable answer, and what follows from it.

use std::time::Duration;

use kube::core::Status;

/// Why a request brought no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The server answered, and refused. Its own message is the text.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// No answer in time. The request may have been carried out.
    #[error("no answer from the API server within {} s", .0.as_secs())]
    Silent(Duration),
    /// The request could not be sent or its answer not be read. It may have been carried out.
    #[error("the API server cannot be asked")]
    Transport(#[source] Box<kube::Error>),
    /// The request could not be built: a name or namespace that fits no URL.
    #[error("no request can be made of this name")]
    Unaskable(#[source] http::Error),
    /// The body could not be written as JSON.
    #[error("the request body cannot be written")]
    Unwritable(#[source] serde_json::Error),
}

impl RequestError {
    /// The server's refusal, when it is one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused(status) => Some(status),
            Self::Silent(_) | Self::Transport(_) | Self::Unaskable(_) | Self::Unwritable(_) => None,
        }
    }

    /// Whether the request may have been carried out all the same: no answer, a broken one, or a server error.
    pub fn is_unclear(&self) -> bool {
        match self {
            Self::Silent(_) | Self::Transport(_) => true,
            Self::Refused(status) => status.code >= 500,
            Self::Unaskable(_) | Self::Unwritable(_) => false,
        }
    }

    /// 404 for the object (or its kind, or its namespace).
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(Status::is_not_found)
    }

    /// 409, for whichever reason.
    pub fn is_conflict(&self) -> bool {
        self.status()
            .is_some_and(|status| status.code == 409 || status.is_conflict() || status.is_already_exists())
    }

    /// 409 because something of this name exists.
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(Status::is_already_exists)
    }

    /// 409 because other managers own fields that this apply sets; only without force.
    pub fn is_field_conflict(&self) -> bool {
        self.has_cause("FieldManagerConflict")
    }

    /// The namespace is being deleted: nothing new may be made in it.
    pub fn is_namespace_terminating(&self) -> bool {
        self.has_cause("NamespaceTerminating")
    }

    /// The refusal is that this very namespace does not exist.
    pub fn is_missing_namespace(&self, namespace: &str) -> bool {
        self.is_not_found()
            && self.status().is_some_and(|status| {
                let named = status
                    .details
                    .as_ref()
                    .is_some_and(|details| details.kind == "namespaces" && details.name == namespace);
                named || status.message.contains(&format!("namespaces \"{namespace}\" not found"))
            })
    }

    /// Whether the content alone decided this, so that only another content can help.
    ///
    /// 422 is the API server's validation (schema, immutable fields). 400 is its decoder (strict decoding, wrong
    /// types). A wrongly typed or unknown field of a server-side apply comes as a plain 500 (Kubernetes 1.36).
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Refused(status) => {
                let untyped = status.message.starts_with("failed to create typed patch object");
                // An admission policy's or webhook's verdict comes in these codes, too, and so does a port or address
                // that is taken: another cluster, or another day, may see it differently.
                let decided = ["denied the request", "denied request", "already allocated"]
                    .iter()
                    .any(|words| status.message.contains(words));
                // More than a request, or than the store, may hold.
                let oversize = status.code == 413 || status.message.contains("request is too large");
                !decided
                    && (status.is_invalid()
                        || status.code == 400
                        || oversize
                        || (status.code == 500 && untyped))
            }
            Self::Unaskable(_) | Self::Unwritable(_) => true,
            Self::Silent(_) | Self::Transport(_) => false,
        }
    }

    /// The same error with every value that the server quotes left out; for objects that hold secrets.
    pub fn without_values(self) -> Self {
        match self {
            Self::Refused(mut status) => {
                status.message = masked(&status.message);
                if let Some(details) = &mut status.details {
                    for cause in &mut details.causes {
                        cause.message = masked(&cause.message);
                    }
                }
                Self::Refused(status)
            }
            other => other,
        }
    }

    fn has_cause(&self, reason: &str) -> bool {
        let details = self.status().and_then(|status| status.details.as_ref());
        details.is_some_and(|details| details.causes.iter().any(|cause| cause.reason == reason))
    }
}

/// Replaces what stands after the two words with which the API server introduces a value it quotes.
fn masked(message: &str) -> String {
    let mut kept = String::with_capacity(message.len());
    for (number, line) in message.split('\n').enumerate() {
        if number > 0 {
            kept.push('\n');
        }
        let cut = ["Value:", "value:", "value ", "string \"", "literal "]
            .iter()
            .filter_map(|word| line.find(word).map(|at| at + word.len()))
            .min();
        match cut {
            Some(at) => {
                kept.push_str(&line[..at]);
                kept.push_str("(hidden)");
            }
            None => kept.push_str(line),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, reason: &str, message: &str) -> RequestError {
        RequestError::Refused(Status::failure(message, reason).with_code(code).boxed())
    }

    #[test]
    fn only_what_the_content_alone_decides_is_permanent() {
        let untyped = "failed to create typed patch object (a/b; apps/v1, Kind=Deployment): .spec.x: field not declared";
        for (error, permanent) in [
            (refused(422, "Invalid", "field is immutable"), true),
            (refused(400, "BadRequest", "strict decoding error: unknown field \"x\""), true),
            (refused(500, "", untyped), true),
            (
                refused(422, "Invalid", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"),
                false,
            ),
            (
                refused(422, "Invalid", "spec.ports[0].nodePort: Invalid value: 30000: already allocated"),
                false,
            ),
            // A finished Job that was changed, and a StatefulSet.
            (
                refused(
                    422,
                    "Invalid",
                    "Job.batch \"j\" is invalid: spec.template: Invalid value: field is immutable",
                ),
                true,
            ),
            (
                refused(
                    422,
                    "Invalid",
                    "spec: Forbidden: updates to statefulset spec for fields other than 'replicas'",
                ),
                true,
            ),
            (refused(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728"), true),
            (refused(500, "", "etcdserver: request is too large"), true),
            (refused(500, "InternalError", "failed calling webhook \"x\": connection refused"), false),
            (
                refused(
                    500,
                    "InternalError",
                    "conversion webhook for g/v1, Kind=K failed: connection refused",
                ),
                false,
            ),
            (refused(403, "Forbidden", "admission webhook \"x\" denied the request: no"), false),
            (refused(400, "BadRequest", "admission webhook \"x\" denied the request: no"), false),
            (
                refused(403, "Forbidden", "pods \"p\" is forbidden: violates PodSecurity \"restricted\""),
                false,
            ),
            (refused(403, "Forbidden", "exceeded quota"), false),
            (
                refused(503, "ServiceUnavailable", "the server is currently unable to handle the request"),
                false,
            ),
            (refused(404, "NotFound", "the server could not find the requested resource"), false),
            (refused(429, "TooManyRequests", "slow down"), false),
            (refused(409, "Conflict", "the object has been modified"), false),
            (RequestError::Silent(Duration::from_secs(1)), false),
        ] {
            assert_eq!(error.is_permanent(), permanent, "{error}");
        }
    }

    #[test]
    fn a_value_quoted_by_the_server_does_not_pass() {
        for message in [
            "errors:\n  .stringData.pin: expected string, got &value.valueUnstructured{Value:4711}\n  .x: not declared",
            "Secret \"s\" is invalid: metadata.labels: Invalid value: \"4711\": a label is wrong",
        ] {
            let shown = refused(422, "Invalid", message).without_values().to_string();
            assert!(!shown.contains("4711"), "{shown}");
            assert!(shown.contains("(hidden)"));
        }
    }

    #[test]
    fn a_missing_namespace_is_told_from_a_missing_object() {
        assert!(refused(404, "NotFound", "namespaces \"x\" not found").is_missing_namespace("x"));
        assert!(!refused(404, "NotFound", "secrets \"x\" not found").is_missing_namespace("x"));
        assert!(!refused(404, "NotFound", "namespaces \"y\" not found").is_missing_namespace("x"));
    }
}
