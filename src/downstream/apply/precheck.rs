// SPDX-License-Identifier: Apache-2.0
//! Helm's ownership check of all objects, before a revision is made: what is refused costs none, and nothing was
//! written when it is told.

use std::collections::{BTreeMap, HashMap};

use futures::{StreamExt, TryStreamExt, stream};

use super::{ApplyError, KnownObjects, Owner, PARALLEL, object::described, ownership::refusal};
use crate::{
    downstream::{
        Downstream,
        objects::{Identity, Place, group_of, namespace_of},
        server::LiveMeta,
    },
    render::Object,
};

/// From so many new objects of one kind in one namespace on, they are looked for in a list.
const LISTED_FROM: usize = 3;
/// The longest list worth reading for that.
const LONGEST_LIST: usize = 200;

/// Checks that whatever is there of the objects may be taken. Those that an earlier revision lists, or that are known
/// to be there under this unit's own stamp, are judged when they are written.
///
/// # Errors
/// [`ApplyError::Foreign`] for the first that may not, in the order given; [`ApplyError::Read`].
pub async fn check_owners(
    ctx: &Downstream,
    owner: &Owner<'_>,
    objects: &[Object],
    live: Option<&dyn KnownObjects>,
) -> Result<(), ApplyError> {
    if owner.take_ownership {
        return Ok(());
    }
    let kinds: Vec<_> =
        objects.iter().map(|object| ctx.kinds.known(&object.api_version, &object.kind)).collect();
    let mut places: BTreeMap<(String, &str), Vec<(usize, Place<'_>)>> = BTreeMap::new();
    for (index, (object, kind)) in objects.iter().zip(&kinds).enumerate() {
        // Of a kind that the bundle itself defines there is nothing yet.
        let Some(kind) = kind else { continue };
        let namespace = namespace_of(kind, &object.namespace, owner.namespace);
        let identity = Identity {
            group: group_of(&object.api_version).to_owned(),
            kind: object.kind.clone(),
            namespace: namespace.to_owned(),
            name: object.name.clone(),
        };
        let known = live.is_some_and(|live| live.known(kind, namespace, &object.name).is_some());
        if known || owner.previous.contains(&identity) {
            continue;
        }
        let place = Place { kind, namespace, name: &object.name };
        places.entry((kind.collection(namespace), namespace)).or_default().push((index, place));
    }
    let mut found: BTreeMap<usize, (LiveMeta, &Place<'_>)> = BTreeMap::new();
    for ((collection, _), wanted) in &places {
        if wanted.len() >= LISTED_FROM
            && let Some(list) = listed(ctx, collection).await
        {
            let list: HashMap<&str, &LiveMeta> = list.iter().map(|meta| (meta.name.as_str(), meta)).collect();
            for (index, place) in wanted {
                if let Some(meta) = list.get(place.name) {
                    found.insert(*index, ((*meta).clone(), place));
                }
            }
            continue;
        }
        let looks: Vec<_> = wanted.iter().map(|(_, place)| look(ctx, place)).collect();
        let looks: Vec<_> = stream::iter(looks).buffered(PARALLEL).try_collect().await?;
        for ((index, place), meta) in wanted.iter().zip(looks) {
            found.extend(meta.map(|meta| (*index, (meta, place))));
        }
    }
    for (index, (meta, place)) in &found {
        if let Some(reason) = refusal(meta, &objects[*index], place, owner, false) {
            return Err(ApplyError::Foreign {
                operation: owner.operation(),
                object: described(place),
                reason,
            });
        }
    }
    Ok(())
}

async fn look(ctx: &Downstream, place: &Place<'_>) -> Result<Option<LiveMeta>, ApplyError> {
    let found = ctx.server.metadata(&place.path()).await;
    found.map_err(|source| ApplyError::Read { object: described(place), source })
}

/// All objects of a collection; `None` when there are many, or when they cannot be listed: then each is looked at.
async fn listed(ctx: &Downstream, collection: &str) -> Option<Vec<LiveMeta>> {
    ctx.server.metadata_page(collection, LONGEST_LIST).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::tests::{PATH, config_map, live, object},
        *,
    };
    use crate::downstream::testing::{Exchange, context, scripted};

    /// Checks the owners before release ns/app is installed; `previous` are the objects of earlier revisions.
    async fn checked(
        exchanges: Vec<Exchange>,
        objects: &[Object],
        previous: &[Object],
        take_ownership: bool,
    ) -> Result<(), ApplyError> {
        let (server, script) = scripted(exchanges);
        let ctx = context(server);
        let previous = Identity::of_all(previous, &ctx.kinds, "ns");
        let owner = Owner {
            namespace: "ns",
            name: "app",
            upgrade: false,
            replace: false,
            take_ownership,
            overwrites: &[],
            previous: &previous,
        };
        let result = check_owners(&ctx, &owner, objects, None).await;
        script.finished().await;
        result
    }

    #[tokio::test]
    async fn an_install_is_refused_for_good_before_anything_is_written() {
        let foreign =
            json!({"metadata": {"name": "c", "namespace": "ns", "uid": "x", "resourceVersion": "7"}});
        let error =
            checked(vec![Exchange::get(PATH).answers(foreign)], &config_map(), &[], false).await.unwrap_err();
        assert!(error.is_permanent());
        let text = error.to_string();
        assert!(
            text.starts_with(
                "unable to continue with install: ConfigMap \"c\" in namespace \"ns\" exists and cannot be imported into \
                 the current release: invalid ownership metadata; label validation error: missing key"
            ),
            "{text}"
        );
    }

    #[tokio::test]
    async fn what_is_absent_or_ours_or_known_is_no_reason_to_refuse() {
        let ours = Exchange::get(PATH).answers(live("u/10"));
        assert!(checked(vec![ours], &config_map(), &[], false).await.is_ok());
        assert!(checked(vec![Exchange::get(PATH).missing()], &config_map(), &[], false).await.is_ok());
        assert!(
            checked(vec![], &config_map(), &config_map(), false).await.is_ok(),
            "listed: judged when written"
        );
        assert!(checked(vec![], &config_map(), &[], true).await.is_ok(), "to be taken");
    }

    #[tokio::test]
    async fn many_objects_of_a_kind_are_looked_for_in_one_list_unless_it_is_long() {
        const LIST: &str = "/api/v1/namespaces/ns/configmaps?limit=200";
        let names = ["a", "b", "c"];
        let objects: Vec<_> = names.iter().map(|name| object("v1", "ConfigMap", name)).collect();
        let foreign =
            json!({"metadata": {"name": "b", "namespace": "ns", "uid": "x", "resourceVersion": "7"}});
        let list = json!({"metadata": {}, "items": [{"metadata": {"name": "z"}}, foreign]});
        let error = checked(vec![Exchange::get(LIST).answers(list)], &objects, &[], false).await.unwrap_err();
        assert!(error.to_string().contains("ConfigMap \"b\""), "{error}");

        let first = json!({"metadata": {"continue": "more"}, "items": []});
        let mut script = vec![Exchange::get(LIST).answers(first)];
        script.extend(
            names.map(|name| Exchange::get(&format!("/api/v1/namespaces/ns/configmaps/{name}")).missing()),
        );
        assert!(checked(script, &objects, &[], false).await.is_ok());
    }
}
