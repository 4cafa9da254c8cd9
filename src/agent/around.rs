// SPDX-License-Identifier: Apache-2.0
//! What is looked at around a deployed bundle: its namespace, what it depends on, and what another bundle took from it.

use std::time::Duration;

use serde_json::{Value, json};
use tracing::debug;

use super::context::Context;
use crate::{
    api::{BundleDeployment, BundleDeploymentOptions, ModifiedStatus},
    downstream::namespace::{self, Forced, NamespaceError},
    monitor::conditions::{DEPLOYED, INSTALLED, READY},
    upstream::{self, fields::Fields},
};

/// A namespace that the bundle may not write, or that others keep changing, is not written again before this time.
/// Fleet's.
pub(super) const NAMESPACE_PACE: Duration = Duration::from_secs(120);
/// An object that another bundle gave up and that vanished is not made again before this time. Fleet's.
pub(super) const REMAKE_PACE: Duration = Duration::from_secs(5);
/// A bundle that may not be in its namespace is looked at again after this time: nothing tells when it may.
pub(super) const TARGET_PACE: Duration = Duration::from_secs(30);

/// What the options force on the namespace.
pub(super) fn forced(options: &BundleDeploymentOptions) -> Forced<'_> {
    Forced { labels: options.namespace_labels.as_ref(), annotations: options.namespace_annotations.as_ref() }
}

/// The metadata of a namespace in which a copy is to be the first thing. Fleet's agent makes it for copies whatever
/// `createNamespace` says.
pub(super) fn made_for_copies(options: &BundleDeploymentOptions, namespace: &str) -> Value {
    let forced = forced(options);
    let helms = options.create_namespace.unwrap_or(true);
    if helms || !forced.is_nothing() { forced.of_new(namespace) } else { json!({}) }
}

/// Why a deployed bundle would not be deployed now; told in `Deployed`, as Fleet's agent does at every event.
pub(super) async fn objection(ctx: &Context, object: &BundleDeployment, namespace: &str) -> Option<String> {
    let options = object.options();
    let selector = options.allowed_target_namespace_selector.as_ref()?;
    let permitted = namespace::permit(&ctx.downstream.agent, namespace, selector).await;
    permitted.err().map(|error| upstream::chain(&error))
}

/// How the namespace stands to what the bundle forces on it.
pub(super) enum Marks {
    /// As it should, or nothing is forced.
    Right,
    /// Otherwise: to be written, under a claim.
    Wrong,
    /// The bundle's account may not look at it.
    Forbidden(String),
    /// Nothing is known of it now.
    Unclear,
}

/// Looks at the namespace under the identity of the deployment.
pub(super) async fn marks(ctx: &Context, object: &BundleDeployment, namespace: &str) -> Marks {
    let options = object.options();
    let forced = forced(&options);
    if forced.is_nothing() {
        return Marks::Right;
    }
    let acting = match ctx.accounts.acting(&ctx.downstream, &options.service_account).await {
        Ok(acting) => acting,
        Err(error) => return unclear(&error),
    };
    match forced.differs(&acting, namespace).await {
        Ok(false) => Marks::Right,
        Ok(true) => Marks::Wrong,
        Err(error @ NamespaceError::Forbidden { .. }) => Marks::Forbidden(upstream::chain(&error)),
        Err(error) => unclear(&error),
    }
}

fn unclear(error: &(dyn std::error::Error + 'static)) -> Marks {
    debug!(cause = upstream::chain(error), "the namespace cannot be looked at");
    Marks::Unclear
}

/// Tells that the namespace is not as the bundle wants it. Fleet's way to say so.
pub(super) fn tell_marks(fields: &mut Fields, text: &str) {
    if let Some(observed) = &mut fields.observed {
        observed.ready = false;
    }
    for (type_, state) in &mut fields.conditions {
        match *type_ {
            INSTALLED => *state = Err(format!("not installed: {text}")),
            READY => *state = Err(format!("not ready: {text}")),
            _ => {}
        }
    }
}

/// The same of a namespace that is not written again yet: the status says it as it did.
pub(super) fn keep_telling_marks(fields: &mut Fields, object: &BundleDeployment) {
    let Some(told) = object.condition(INSTALLED).filter(|installed| installed.status == "False") else {
        return;
    };
    let text = told.message.strip_prefix("not installed: ").unwrap_or(&told.message).to_owned();
    tell_marks(fields, &text);
}

/// Tells in `Deployed` what speaks against the bundle now.
pub(super) fn tell_objection(fields: &mut Fields, text: String) {
    if let Some((_, state)) = fields.conditions.iter_mut().find(|(type_, _)| *type_ == DEPLOYED) {
        *state = Err(text);
    }
}

/// Whether something is missing that another bundle gave up to this one, and perhaps deleted after this one had made it.
pub(super) fn was_taken(options: &BundleDeploymentOptions, modified: &[ModifiedStatus]) -> bool {
    modified.iter().filter(|entry| entry.missing).any(|entry| {
        options.overwrites.iter().any(|given| given.kind == entry.kind && given.name == entry.name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::fields::ObservedFields;

    #[test]
    fn a_namespace_that_copies_make_has_what_the_bundle_wants_on_it() {
        for (options, wanted) in [
            (json!({}), json!({"labels": {"name": "ns"}, "annotations": {}})),
            (json!({"createNamespace": false}), json!({})),
            (
                json!({"namespaceLabels": {"team": "shop"}, "namespaceAnnotations": {"owner": "me"}}),
                json!({"labels": {"team": "shop"}, "annotations": {"owner": "me"}}),
            ),
            (
                json!({"createNamespace": false, "namespaceLabels": {"team": "shop"}}),
                json!({"labels": {"team": "shop"}, "annotations": {}}),
            ),
        ] {
            let read = serde_json::from_value(options.clone()).unwrap();
            assert_eq!(made_for_copies(&read, "ns"), wanted, "{options}");
        }
    }

    #[test]
    fn only_what_was_given_up_and_is_missing_is_made_again() {
        let options = serde_json::from_value(
            json!({"overwrites": [{"kind": "ConfigMap", "name": "a", "namespace": "elsewhere"}]}),
        )
        .unwrap();
        let modified = |kind: &str, name: &str, missing: bool| {
            vec![ModifiedStatus {
                kind: kind.into(),
                name: name.into(),
                missing,
                ..ModifiedStatus::default()
            }]
        };
        assert!(was_taken(&options, &modified("ConfigMap", "a", true)));
        assert!(!was_taken(&options, &modified("ConfigMap", "a", false)));
        assert!(!was_taken(&options, &modified("ConfigMap", "b", true)));
        assert!(!was_taken(&options, &modified("Secret", "a", true)));
    }

    #[test]
    fn a_namespace_that_is_not_right_is_told_and_stays_told() {
        let fields = || Fields {
            observed: Some(ObservedFields { ready: true, ..ObservedFields::default() }),
            conditions: vec![(INSTALLED, Ok(())), (DEPLOYED, Ok(())), (READY, Ok(()))],
            ..Fields::default()
        };
        let mut told = fields();
        tell_marks(&mut told, "no");
        assert!(!told.observed.as_ref().unwrap().ready);
        let expected = [
            (INSTALLED, Err("not installed: no".into())),
            (DEPLOYED, Ok(())),
            (READY, Err("not ready: no".into())),
        ];
        assert_eq!(told.conditions, expected);
        let object = serde_json::from_value(json!({"metadata": {}, "spec": {}, "status": {"conditions": [
            {"type": "Installed", "status": "False", "message": "not installed: no"}]}}))
        .unwrap();
        let mut kept = fields();
        keep_telling_marks(&mut kept, &object);
        assert_eq!(kept, told);
        tell_objection(&mut kept, "wait".into());
        assert_eq!(kept.conditions[1], (DEPLOYED, Err("wait".into())));
    }
}
