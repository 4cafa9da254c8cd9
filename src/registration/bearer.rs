// SPDX-License-Identifier: Apache-2.0
//! The bearer token in a kubeconfig, and what it says of itself.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use kube::config::{Cluster, Context, Kubeconfig};
use serde_json::Value;

/// The current context.
pub fn context(kubeconfig: &Kubeconfig) -> Option<&Context> {
    let current = kubeconfig.current_context.as_deref()?;
    kubeconfig.contexts.iter().find(|context| context.name == current)?.context.as_ref()
}

/// The current context's cluster: its server and authority.
pub fn cluster(kubeconfig: &Kubeconfig) -> Option<&Cluster> {
    let name = context(kubeconfig)?.cluster.as_str();
    kubeconfig.clusters.iter().find(|cluster| cluster.name == name)?.cluster.as_ref()
}

/// URL of the current context's server.
pub fn server(kubeconfig: &Kubeconfig) -> Option<&str> {
    cluster(kubeconfig)?.server.as_deref()
}

/// The authority that stands in a kubeconfig's cluster itself, PEM in base64. `None`: it is no such text.
pub fn authority(data: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(data).ok()?).ok()
}

/// The token of the current context's user, where it stands in the kubeconfig itself. Not to be told.
pub fn token(kubeconfig: &Kubeconfig) -> Option<String> {
    let name = context(kubeconfig)?.user.as_deref()?;
    let user = kubeconfig.auth_infos.iter().find(|user| user.name == name)?.auth_info.as_ref()?;
    // The type hides it from prints, and is another crate's; its serialized form is the file's.
    let user = serde_json::to_value(user).ok()?;
    user["token"].as_str().filter(|token| !token.is_empty()).map(str::to_owned)
}

/// The account that a token is for by its own words, as `system:serviceaccount:NAMESPACE:NAME`. `None`: it does not say.
/// Nothing is verified here.
pub fn account(token: &str) -> Option<String> {
    Some(payload(token)?["sub"].as_str()?.to_owned())
}

/// When a token ends by its own words, in seconds since 1970. `None`: never, or it is no JSON web token. Nothing is
/// verified here.
pub fn expires(token: &str) -> Option<i64> {
    payload(token)?["exp"].as_i64()
}

fn payload(token: &str) -> Option<Value> {
    let payload = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
current-context: b
clusters: [{name: c, cluster: {server: 'https://up'}}]
contexts: [{name: a, context: {cluster: x, user: y}}, {name: b, context: {cluster: c, user: u, namespace: n}}]
users: [{name: y, user: {token: other}}, {name: u, user: {token: mine}}]
";

    #[test]
    fn the_current_context_decides() {
        let kubeconfig = Kubeconfig::from_yaml(TEXT).unwrap();
        assert_eq!(token(&kubeconfig).as_deref(), Some("mine"));
        assert_eq!(server(&kubeconfig), Some("https://up"));
        assert_eq!(context(&kubeconfig).unwrap().namespace.as_deref(), Some("n"));
    }

    #[test]
    fn a_token_says_when_it_ends_or_nothing() {
        let token = |payload: &str| format!("h.{}.s", URL_SAFE_NO_PAD.encode(payload));
        assert_eq!(expires(&token(r#"{"exp":1700000000}"#)), Some(1_700_000_000));
        assert_eq!(expires(&token(r#"{"sub":"x"}"#)), None);
        assert_eq!(expires("opaque"), None);
        assert_eq!(account(&token(r#"{"sub":"system:x"}"#)).as_deref(), Some("system:x"));
        assert_eq!(account("opaque"), None);
    }
}
