// SPDX-License-Identifier: Apache-2.0
//! What `flotilla apply` deployed before, kept on the BundleDeployment itself, so that it can be brought back. Pure.
//!
//! The annotation holds specs, newest last, each with the revision that it was deployed as. Files are not in it: they
//! are in the Contents that the specs name.

use serde::{Deserialize, Serialize};

use crate::api::{BundleDeployment, BundleDeploymentSpec, DeploymentId, ReleaseId};

/// The annotation.
pub const ANNOTATION: &str = "flotilla.fleet/history";
/// Specs that are kept at most: Helm's default.
const ENTRIES: usize = 10;
/// Bytes that the annotation may have; all annotations of an object share 256 KiB.
const BYTES: usize = 128 * 1024;

/// One earlier spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The release's revision; absent for one that was never deployed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u32>,
    /// The spec. Its staged half is left out, it is the same.
    pub spec: BundleDeploymentSpec,
}

impl Entry {
    /// What stands now.
    pub fn of(bd: &BundleDeployment) -> Self {
        let mut spec = bd.spec.clone();
        spec.staged_options = None;
        spec.staged_deployment_id.clear();
        Self { revision: revision(bd), spec }
    }

    /// The spec, whole again.
    pub fn restored(&self) -> BundleDeploymentSpec {
        let mut spec = self.spec.clone();
        spec.staged_options.clone_from(&spec.options);
        spec.staged_deployment_id.clone_from(&spec.deployment_id);
        spec
    }

    /// The Content with its files.
    pub fn content(&self) -> String {
        DeploymentId::parse(&self.spec.deployment_id).manifest_id
    }
}

/// As which revision the spec in force is deployed.
pub fn revision(bd: &BundleDeployment) -> Option<u32> {
    let status = bd.status.as_ref()?;
    let deployed = !bd.spec.deployment_id.is_empty() && status.applied_deployment_id == bd.spec.deployment_id;
    deployed.then(|| status.release.parse::<ReleaseId>().ok()).flatten().map(|release| release.revision)
}

/// Earlier specs, newest last. What cannot be read was written by somebody else.
pub fn entries(bd: &BundleDeployment) -> Vec<Entry> {
    let text = bd.metadata.annotations.as_ref().and_then(|annotations| annotations.get(ANNOTATION));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Puts what stands now to the earlier ones, before another spec takes its place. The oldest go when there is no room.
pub fn remember(before: &BundleDeployment, after: &mut BundleDeployment) -> Result<(), serde_json::Error> {
    let now = Entry::of(before);
    if now.spec.deployment_id.is_empty() || now.spec.deployment_id == after.spec.deployment_id {
        return Ok(());
    }
    let mut kept = entries(before);
    kept.retain(|entry| entry.spec.deployment_id != now.spec.deployment_id);
    kept.push(now);
    let mut from = kept.len().saturating_sub(ENTRIES);
    let mut text = serde_json::to_string(&kept[from..])?;
    while text.len() > BYTES && from < kept.len() {
        from += 1;
        text = serde_json::to_string(&kept[from..])?;
    }
    after.metadata.annotations.get_or_insert_default().insert(ANNOTATION.to_owned(), text);
    Ok(())
}

/// The one to go back to: of that revision, or the newest that was deployed and is not what stands now.
pub fn chosen(bd: &BundleDeployment, wanted: Option<u32>) -> Result<Entry, String> {
    let entries = entries(bd);
    let known = || {
        let list: Vec<_> = entries.iter().filter_map(|entry| entry.revision).map(|n| n.to_string()).collect();
        match list.as_slice() {
            [] => "no earlier revision is known".to_owned(),
            list => format!("earlier revisions: {}", list.join(", ")),
        }
    };
    if wanted.is_some() && wanted == revision(bd) {
        return Err(format!("revision {} is the one in force", wanted.unwrap_or_default()));
    }
    let fits = |entry: &&Entry| match wanted {
        Some(wanted) => entry.revision == Some(wanted),
        None => entry.revision.is_some() && entry.spec.deployment_id != bd.spec.deployment_id,
    };
    let Some(entry) = entries.iter().rev().find(fits) else {
        return Err(match wanted {
            Some(wanted) => format!("revision {wanted} is not known here; {}", known()),
            None => format!("there is nothing to go back to: {}", known()),
        });
    };
    if entry.spec.deployment_id == bd.spec.deployment_id {
        return Err(format!("what revision {} deployed is in force", entry.revision.unwrap_or_default()));
    }
    Ok(entry.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bd(id: &str, revision: Option<u32>, annotation: Option<&String>) -> BundleDeployment {
        let release = revision.map(|revision| format!("ns/web:{revision}")).unwrap_or_default();
        let applied = if revision.is_some() { id } else { "other" };
        serde_json::from_value(json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
            "metadata": {"name": "web", "annotations": annotation.map(|text| json!({ANNOTATION: text}))},
            "spec": {"deploymentID": id, "stagedDeploymentID": id, "options": {"defaultNamespace": id},
                "stagedOptions": {"defaultNamespace": id}},
            "status": {"appliedDeploymentID": applied, "release": release},
        }))
        .unwrap()
    }

    /// Deploys one after the other; the annotation goes along as `flotilla apply` carries it.
    fn after(ids: &[(&str, Option<u32>)]) -> BundleDeployment {
        let mut now = bd(ids[0].0, ids[0].1, None);
        for (id, revision) in &ids[1..] {
            let mut next =
                bd(id, *revision, now.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)));
            remember(&now, &mut next).unwrap();
            now = next;
        }
        now
    }

    #[test]
    fn one_goes_back_to_the_last_that_was_deployed_or_to_the_one_named() {
        let now = after(&[("s-1:a", Some(1)), ("s-2:a", Some(2)), ("s-3:a", None), ("s-4:a", Some(3))]);
        let last = chosen(&now, None).unwrap();
        assert_eq!(
            (last.revision, last.content()),
            (Some(2), "s-2".to_owned()),
            "what was never deployed is passed over"
        );
        assert_eq!(last.restored(), bd("s-2:a", None, None).spec);
        assert_eq!(chosen(&now, Some(1)).unwrap().content(), "s-1");
        assert_eq!(chosen(&now, Some(3)).unwrap_err(), "revision 3 is the one in force");
        assert_eq!(
            chosen(&now, Some(9)).unwrap_err(),
            "revision 9 is not known here; earlier revisions: 1, 2"
        );
        assert!(
            chosen(&after(&[("s-1:a", Some(1))]), None).unwrap_err().contains("no earlier revision is known")
        );
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let ids: Vec<String> = (1..=30).map(|n| format!("s-{n}:a")).collect();
        let all: Vec<_> = ids.iter().zip(1..).map(|(id, n)| (id.as_str(), Some(n))).collect();
        assert_eq!(entries(&after(&all)).len(), ENTRIES);
        let mut large = bd("s-1:a", Some(1), None);
        large.spec.values_hash = "x".repeat(BYTES);
        let mut next = bd("s-2:a", Some(2), None);
        remember(&large, &mut next).unwrap();
        assert!(entries(&next).is_empty());
    }

    #[test]
    fn strange_annotations_are_no_history() {
        assert!(entries(&bd("s", None, Some(&"[1".to_owned()))).is_empty());
    }
}
