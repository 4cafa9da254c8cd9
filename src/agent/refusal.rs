// SPDX-License-Identifier: Apache-2.0
//! Bundles that carry Fleet's own agent are not deployed; their condition says why, and how to be rid of them.
//!
//! The controller makes one for every cluster it manages, and labels on the Cluster keep it away. Deploying it would put
//! Fleet's agent in this one's place, by way of `takeOwnership`. Its deletion removes nothing either.

use std::sync::Arc;

use super::{context::Context, inbox::Name, look::write, monitoring::Outcome, notes, plan::Plan};
use crate::{
    api::{BundleDeployment, ReleaseId, names},
    monitor::conditions::DEPLOYED,
    protocol::{Gate, Snapshot},
    registration::ClusterName,
    telemetry::events::{EventType, reason},
    upstream::fields::Fields,
};

/// Label of a Cluster: the agent bundle targets the clusters without it.
const LABEL: &str = "fleet.cattle.io/non-managed-agent";

/// Whether this unit is one, and nobody has a claim on it.
pub(super) fn applies(name: &str, latest: &Snapshot) -> bool {
    names::is_agent_bundle(name) && latest.gate == Gate::Refused && !latest.slot.is_open()
}

/// Writes the condition, once; the Event comes with it.
pub(super) async fn tell(ctx: &Arc<Context>, name: &Name, object: &Arc<BundleDeployment>) -> Outcome {
    let nothing =
        || Outcome::Same { plan: Arc::new(Plan::empty(ReleaseId::default())), changes_in: None, drift: None };
    if object.metadata.deletion_timestamp.is_some() {
        return nothing();
    }
    let text = text(name, &ctx.cluster.borrow());
    let fields = Fields { conditions: vec![(DEPLOYED, Err(text.clone()))], ..Fields::default() };
    match write(ctx, name, object, &fields).await {
        Some(Ok(object)) => {
            notes::publish(ctx, None, EventType::Warning, reason::AGENT_BUNDLE_REFUSED, text);
            Outcome::Written { plan: None, object, changes_in: None, drift: None }
        }
        Some(Err(cause)) => Outcome::Again(cause),
        None => nothing(),
    }
}

fn text(name: &str, cluster: &ClusterName) -> String {
    let cluster = match cluster.name.as_str() {
        "" => "the Cluster".to_owned(),
        name => format!("Cluster {}/{name}", cluster.registration_namespace),
    };
    format!(
        "bundle {name} carries Fleet's own agent, which would take this one's place: it is not deployed. \
         Label {cluster} with {LABEL}=true to remove the bundle"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_cluster_and_the_label() {
        let cluster = ClusterName { name: "shop".into(), registration_namespace: "fleet-default".into() };
        let said = text("fleet-agent-shop", &cluster);
        assert!(
            said.contains("Label Cluster fleet-default/shop with fleet.cattle.io/non-managed-agent=true")
        );
        assert!(text("fleet-agent-shop", &ClusterName::default()).contains("Label the Cluster with"));
    }
}
