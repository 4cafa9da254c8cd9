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
