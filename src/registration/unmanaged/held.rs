// SPDX-License-Identifier: Apache-2.0
//! What the agent has already: its Secret, as an earlier registration wrote it.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, config::Kubeconfig};

use super::{Plan, UnmanagedError};
use crate::registration::{SECRET, bearer};

/// The way to the management cluster that stands in the agent's Secret. Not `Debug`: the token must not be told.
pub struct Held {
    /// URL of the API server.
    pub server: String,
    /// Its authority, PEM; `None`: one that the system trusts.
    pub authority: Option<String>,
    /// The token; `None` where the agent uses the account of its Pod.
    pub token: Option<String>,
}

/// Reads the Secret. `None`: there is none, or it is not for the plan's cluster namespace.
pub async fn held(local: &Client, plan: &Plan) -> Result<Option<Held>, UnmanagedError> {
    let secrets: Api<Secret> = Api::namespaced(local.clone(), &plan.agent_namespace);
    let reading = UnmanagedError::secret(format!("read Secret {}/{SECRET}", plan.agent_namespace));
    let secret = secrets.get_opt(SECRET).await.map_err(reading)?;
    Ok(secret.and_then(|secret| of(&secret, &plan.cluster_namespace)))
}

fn of(secret: &Secret, cluster_namespace: &str) -> Option<Held> {
    let bytes = secret.data.as_ref()?.get("kubeconfig")?;
    let kubeconfig = Kubeconfig::from_yaml(std::str::from_utf8(&bytes.0).ok()?).ok()?;
    if bearer::context(&kubeconfig)?.namespace.as_deref() != Some(cluster_namespace) {
        return None;
    }
    let data = bearer::cluster(&kubeconfig)?.certificate_authority_data.as_deref();
    Some(Held {
        server: bearer::server(&kubeconfig)?.to_owned(),
        authority: data.and_then(bearer::authority),
        token: bearer::token(&kubeconfig),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::registration::unmanaged::{Access, Identity, downstream_secret};

    fn held_of(access: &Access<'_>, namespace: &str) -> Option<Held> {
        let plan = Plan::new("a", "b", Some("c"), BTreeMap::new(), "agents", Identity::Own).unwrap();
        of(&serde_json::from_value(downstream_secret(&plan, access)).unwrap(), namespace)
    }

    #[test]
    fn what_was_written_is_read_again_if_it_is_for_this_cluster() {
        for authority in [Some("pem"), None] {
            let access = Access::Token { server: "https://up", authority, token: "t" };
            let held = held_of(&access, "c").unwrap();
            assert_eq!((held.server.as_str(), held.authority.as_deref()), ("https://up", authority));
            assert_eq!(held.token.as_deref(), Some("t"));
            assert!(held_of(&access, "another").is_none());
        }
        assert_eq!(held_of(&Access::Pod { server: "https://in" }, "c").unwrap().token, None);
    }
}
