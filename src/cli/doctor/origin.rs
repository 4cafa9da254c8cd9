// SPDX-License-Identifier: Apache-2.0
//! Where a registration comes from, which decides how it is mended: `flotilla register` refuses a Cluster of Fleet's.

use kube::{Api, Client, ResourceExt};

use crate::{
    api::Cluster,
    registration::{
        Registration, bearer,
        unmanaged::{ACCOUNT, MANAGEMENT_LABEL},
    },
};

/// Who made the agent's account on the management cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// `flotilla register`, or its printed objects.
    Plain,
    /// Fleet's controller.
    Managed,
    /// Nothing tells.
    Unknown,
}

/// The Cluster says it, where an administrator looks; else the registration's own words.
pub(super) async fn origin(registration: &Registration, admin: Option<&Client>) -> Origin {
    if let Some(admin) = admin {
        let clusters: Api<Cluster> =
            Api::namespaced(admin.clone(), &registration.cluster_registration_namespace);
        if let Ok(Some(cluster)) = clusters.get_opt(&registration.cluster_name).await {
            let plain = cluster.labels().get(MANAGEMENT_LABEL).is_some_and(|value| !value.is_empty());
            return if plain { Origin::Plain } else { Origin::Managed };
        }
    }
    if registration.request.is_some() {
        return Origin::Managed;
    }
    let account = bearer::token(&registration.kubeconfig).as_deref().and_then(bearer::account);
    of_account(account.as_deref())
}

fn of_account(account: Option<&str>) -> Origin {
    match account.and_then(|account| account.rsplit(':').next()) {
        Some(ACCOUNT) => Origin::Plain,
        Some(_) => Origin::Managed,
        None => Origin::Unknown,
    }
}

impl Origin {
    /// For rights that are missing, or a Cluster that is.
    pub(super) fn fix_rights(self) -> &'static str {
        match self {
            Origin::Managed => {
                "Fleet's controller gives these when the cluster registers: look at its log, or register anew with a \
                 new Secret fleet-agent-bootstrap in the agent's namespace"
            }
            _ => "flotilla register NAME (on the management cluster; again does no harm)",
        }
    }

    /// For a token that is of no use.
    pub(super) fn fix_token(self) -> &'static str {
        match self {
            Origin::Managed => {
                "a new Secret fleet-agent-bootstrap in the agent's namespace, with which the agent registers anew"
            }
            Origin::Plain => "flotilla register NAME --rotate-token --downstream-kubeconfig FILE",
            Origin::Unknown => {
                "flotilla register NAME --rotate-token --downstream-kubeconfig FILE, or a new bootstrap Secret"
            }
        }
    }

    /// For a Secret without a usable way to the management cluster.
    pub(super) fn fix_secret(self) -> &'static str {
        match self {
            Origin::Managed => self.fix_token(),
            _ => "write the Secret anew: `flotilla register NAME --print secret`",
        }
    }

    /// For rights that an agent should not have.
    pub(super) fn fix_excess(self) -> &'static str {
        match self {
            Origin::Managed => "take away the bindings of its account that Fleet's controller did not make",
            _ => "give it an account of its own: `flotilla register NAME`",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_tells_who_registered_and_only_what_can_work_is_proposed() {
        let ours = of_account(Some("system:serviceaccount:cluster-a:flotilla-agent"));
        let fleets = of_account(Some("system:serviceaccount:cluster-a:request-x7k2-0ab1"));
        assert_eq!([ours, fleets, of_account(None)], [Origin::Plain, Origin::Managed, Origin::Unknown]);
        for fix in [Origin::fix_rights, Origin::fix_token, Origin::fix_secret, Origin::fix_excess] {
            assert!(!fix(fleets).contains("flotilla register"), "{}", fix(fleets));
            assert!(fix(ours).contains("flotilla register"), "{}", fix(ours));
        }
        assert!(Origin::Unknown.fix_token().contains("bootstrap"));
    }
}
