// SPDX-License-Identifier: Apache-2.0
//! Before the gate: whether the account that a bundle is deployed as may see its objects, and whose they are.
//!
//! Helm asks the same before it makes a revision. The agent itself sees everything, so for it this is not asked.

use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::{ApplyError, Owner, PARALLEL, object::described, ownership::refusal};
use crate::{
    downstream::{
        Downstream,
        objects::{Identity, Place, namespace_of},
    },
    render::Object,
};

/// Looks at every object that the release has not had yet, in the bundle's order.
///
/// # Errors
/// The first that the account may not see, or that belongs to another.
pub async fn accessible(ctx: &Downstream, owner: &Owner<'_>, objects: &[Object]) -> Result<(), ApplyError> {
    let new = objects
        .iter()
        .filter(|object| !owner.previous.contains(&Identity::of(object, &ctx.kinds, owner.namespace)));
    let looks: Vec<_> = new.map(|object| look(ctx, owner, object).boxed()).collect();
    stream::iter(looks).buffered(PARALLEL).try_collect::<()>().await
}

async fn look(ctx: &Downstream, owner: &Owner<'_>, object: &Object) -> Result<(), ApplyError> {
    // One that the bundle's own CRD defines is not there yet.
    let Some(kind) = ctx.kinds.known(&object.api_version, &object.kind) else { return Ok(()) };
    let namespace = namespace_of(&kind, &object.namespace, owner.namespace);
    let place = Place { kind: &kind, namespace, name: &object.name };
    let operation = owner.operation();
    match ctx.server.metadata(&place.path()).await {
        Ok(None) => Ok(()),
        Ok(Some(live)) => match refusal(&live, object, &place, owner, false) {
            Some(reason) => Err(ApplyError::Foreign { operation, object: described(&place), reason }),
            None => Ok(()),
        },
        Err(source) => Err(ApplyError::Unseen { operation, object: described(&place), source }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;
    use crate::{
        api::keys,
        downstream::testing::{Exchange, context, scripted},
        telemetry::chain,
    };

    fn config_map(name: &str) -> Object {
        Object {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: String::new(),
            name: name.into(),
            value: json!({"metadata": {"name": name}}),
        }
    }

    #[tokio::test]
    async fn what_the_account_may_not_see_or_take_makes_no_revision() {
        let path = "/api/v1/namespaces/ns/configmaps/new";
        let foreign = json!({"metadata": {"uid": "x", "annotations": {keys::RELEASE_NAME: "other"}}});
        for (exchange, text) in [
            (Exchange::get(path).missing(), None),
            (
                Exchange::get(path).refuses(403, "Forbidden", "configmaps \"new\" is forbidden"),
                Some(
                    "unable to continue with update: could not get information about the resource ConfigMap \"new\" in \
                     namespace \"ns\": configmaps \"new\" is forbidden",
                ),
            ),
            (
                Exchange::get(path).answers(foreign),
                Some(
                    "unable to continue with update: ConfigMap \"new\" in namespace \"ns\" exists and cannot be",
                ),
            ),
        ] {
            let (server, script) = scripted(vec![exchange]);
            let ctx = context(server);
            let previous: HashSet<Identity> = Identity::of_all(&[config_map("old")], &ctx.kinds, "ns");
            let owner = Owner {
                namespace: "ns",
                name: "app",
                upgrade: true,
                replace: false,
                take_ownership: false,
                overwrites: &[],
                previous: &previous,
            };
            let looked = accessible(&ctx, &owner, &[config_map("old"), config_map("new")]).await;
            let told = looked.err().map(|error| chain(&error));
            match text {
                None => assert_eq!(told, None),
                Some(text) => assert!(told.as_ref().is_some_and(|told| told.starts_with(text)), "{told:?}"),
            }
            script.finished().await;
        }
    }
}
