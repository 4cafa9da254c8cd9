// SPDX-License-Identifier: Apache-2.0
//! Kubeconfig texts, with the names Fleet's agent gives to cluster, user and context.

use base64::{Engine, engine::general_purpose::STANDARD};

use super::pki::Pair;

/// How the client says who it is.
pub(super) enum Credential<'a> {
    /// A bearer token.
    Token(&'a str),
    /// A client certificate.
    Certificate(&'a Pair),
}

/// The YAML text of a kubeconfig with one context.
pub(super) fn text(url: &str, ca_pem: &str, namespace: &str, credential: Credential<'_>) -> String {
    let ca = STANDARD.encode(ca_pem);
    let user = match credential {
        Credential::Token(token) => format!("    token: {token}"),
        Credential::Certificate(pair) => format!(
            "    client-certificate-data: {}\n    client-key-data: {}",
            STANDARD.encode(&pair.certificate),
            STANDARD.encode(&pair.key)
        ),
    };
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: cluster
  cluster:
    server: {url}
    certificate-authority-data: {ca}
users:
- name: user
  user:
{user}
contexts:
- name: default
  context:
    cluster: cluster
    user: user
    namespace: {namespace}
current-context: default
"
    )
}
