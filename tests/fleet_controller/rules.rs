// SPDX-License-Identifier: Apache-2.0
//! What Fleet's controller makes of one BundleDeployment: its state, the words it shows, and whom a change wakes.
//!
//! Written a second time, and on bare JSON, so that a mistake in `flotilla::api::state` or in our types is not also made
//! here. Nothing but spec and status is looked at: that is all the controller has.

use serde_json::{Value, json};

/// The states, the weightiest last: it stands for a sum of several.
pub const RANKS: [&str; 7] =
    ["Ready", "NotReady", "Pending", "OutOfSync", "Modified", "WaitApplied", "ErrApplied"];

/// What is shown of a BundleDeployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// One of [`RANKS`].
    pub state: &'static str,
    /// What stands beside the state in the texts of Bundle, Cluster and GitRepo.
    pub message: String,
    /// `status.display.deployed`.
    pub deployed: String,
    /// `status.display.monitored`.
    pub monitored: String,
}

/// Judges a BundleDeployment.
pub fn verdict(unit: &Value) -> Verdict {
    Verdict {
        state: state(unit),
        message: message(unit),
        deployed: shown(unit, "Deployed"),
        monitored: shown(unit, "Monitored"),
    }
}

/// The text at a pointer; empty when there is none.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn flag(unit: &Value, pointer: &str) -> bool {
    unit.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

fn condition<'a>(unit: &'a Value, type_: &str) -> &'a Value {
    let mut all = unit["status"]["conditions"].as_array().into_iter().flatten();
    all.find(|condition| condition["type"] == type_).unwrap_or(&Value::Null)
}

/// Whether the status speaks of the deployment that is asked for.
pub fn is_applied(unit: &Value) -> bool {
    text(unit, "/status/appliedDeploymentID") == text(unit, "/spec/deploymentID")
}

/// Its state; the order of the questions is the controller's.
pub fn state(unit: &Value) -> &'static str {
    if !is_applied(unit) {
        let failed = text(condition(unit, "Deployed"), "/status") == "False";
        return if failed { "ErrApplied" } else { "WaitApplied" };
    }
    let staged = text(unit, "/spec/deploymentID") == text(unit, "/spec/stagedDeploymentID");
    match (flag(unit, "/status/ready"), staged, flag(unit, "/status/nonModified")) {
        (false, ..) => "NotReady",
        (_, false, _) => "OutOfSync",
        (.., false) => "Modified",
        (true, true, true) => "Ready",
    }
}

/// Why it is in that state, as far as conditions tell. That of `Installed` counts only for what is asked for now.
pub fn message(unit: &Value) -> String {
    let of = |type_| text(condition(unit, type_), "/message");
    let installed = if is_applied(unit) { of("Installed") } else { "" };
    let all = [of("Deployed"), installed, of("Monitored")];
    all.into_iter().find(|text| !text.is_empty()).unwrap_or_default().to_owned()
}

/// A printer column.
fn shown(unit: &Value, type_: &str) -> String {
    let condition = condition(unit, type_);
    match text(condition, "/reason") {
        "Error" => format!("Error: {}", text(condition, "/message")),
        _ => text(condition, "/status").to_owned(),
    }
}

/// Whom a change of a BundleDeployment wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Woken {
    /// Its Bundle, and the columns of the BundleDeployment itself.
    pub bundle: bool,
    /// Its Cluster, which stays as it was when nothing else tells it.
    pub cluster: bool,
}

/// Whom a change wakes; `None` is a BundleDeployment that is not there.
pub fn wakes(before: Option<&Value>, after: Option<&Value>) -> Woken {
    let (Some(before), Some(after)) = (before, after) else {
        let moved = before.is_some() != after.is_some();
        return Woken { bundle: moved, cluster: moved };
    };
    let differs = |pointer: &str| before.pointer(pointer) != after.pointer(pointer);
    let deleted = differs("/metadata/deletionTimestamp");
    let spec = differs("/spec");
    let ready = flag(before, "/status/ready") != flag(after, "/status/ready");
    let applied = text(before, "/status/appliedDeploymentID") != text(after, "/status/appliedDeploymentID");
    Woken { bundle: deleted || spec || differs("/status"), cluster: deleted || spec || ready || applied }
}

/// The same BundleDeployment without the claim.
pub fn without_claim(unit: &Value) -> Value {
    let mut unit = unit.clone();
    if let Some(Value::Array(conditions)) = unit.pointer_mut("/status/conditions") {
        conditions.retain(|condition| condition["type"] != "InProgress");
    }
    unit
}

/// A BundleDeployment of these two parts.
pub fn unit(spec: Value, status: Value) -> Value {
    json!({"metadata": {"name": "web"}, "spec": spec, "status": status})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(status: Value) -> Value {
        unit(json!({"deploymentID": "a", "stagedDeploymentID": "a"}), status)
    }

    #[test]
    fn the_state_follows_the_order_of_the_questions() {
        let failed = json!([{"type": "Deployed", "status": "False", "reason": "Error", "message": "no"}]);
        let all =
            json!({"appliedDeploymentID": "a", "ready": true, "nonModified": true, "conditions": failed});
        let without = |key: &str| {
            let mut status = all.clone();
            status.as_object_mut().unwrap().remove(key);
            asked(status)
        };
        let staged = |status: Value| unit(json!({"deploymentID": "a", "stagedDeploymentID": "b"}), status);
        for (what, unit, expected) in [
            ("nothing is known", asked(json!({})), "WaitApplied"),
            ("an older one stands", asked(json!({"appliedDeploymentID": "o", "ready": true})), "WaitApplied"),
            ("failed", asked(json!({"conditions": failed})), "ErrApplied"),
            ("applied wins over Deployed", asked(all.clone()), "Ready"),
            ("not ready", without("ready"), "NotReady"),
            ("modified", without("nonModified"), "Modified"),
            ("staged", staged(all.clone()), "OutOfSync"),
            ("staged, and modified", staged(json!({"appliedDeploymentID": "a", "ready": true})), "OutOfSync"),
            ("staged, and not ready", staged(json!({"appliedDeploymentID": "a"})), "NotReady"),
            ("nothing was ever asked for", unit(json!({}), json!({})), "NotReady"),
        ] {
            assert_eq!(state(&unit), expected, "{what}");
            assert!(RANKS.contains(&expected));
        }
    }

    #[test]
    fn words_come_from_deployed_then_installed_then_monitored() {
        let conditions = |deployed: &str, installed: &str| {
            json!([
                {"type": "Monitored", "status": "False", "reason": "Error", "message": "m"},
                {"type": "Installed", "status": "False", "reason": "Error", "message": installed},
                {"type": "Deployed", "status": "True", "message": deployed},
                {"type": "Ready", "status": "False", "reason": "Error", "message": "never shown"},
            ])
        };
        let said = |applied: &str, deployed: &str, installed: &str| {
            let status =
                json!({"appliedDeploymentID": applied, "conditions": conditions(deployed, installed)});
            message(&asked(status))
        };
        assert_eq!(
            (said("a", "d", "i"), said("a", "", "i"), said("o", "", "i")),
            ("d".into(), "i".into(), "m".into())
        );
        let found = verdict(&asked(json!({"conditions": conditions("", "i")})));
        assert_eq!((&*found.deployed, &*found.monitored), ("True", "Error: m"));
        assert_eq!(verdict(&asked(json!({}))).deployed, "");
    }

    #[test]
    fn a_cluster_wakes_for_few_changes() {
        let before = asked(json!({"appliedDeploymentID": "a", "ready": true}));
        let change = |pointer: &str, value: Value| {
            let mut after = before.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            after.pointer_mut(parent).unwrap()[key] = value;
            let Woken { bundle, cluster } = wakes(Some(&before), Some(&after));
            (bundle, cluster)
        };
        assert_eq!(change("/metadata/labels", json!({"a": "b"})), (false, false));
        assert_eq!(change("/status/nonModified", true.into()), (true, false));
        assert_eq!(change("/status/conditions", json!([{"type": "InProgress"}])), (true, false));
        for (pointer, value) in [
            ("/status/ready", json!(false)),
            ("/status/appliedDeploymentID", json!("b")),
            ("/spec/paused", json!(true)),
            ("/metadata/deletionTimestamp", json!("now")),
        ] {
            assert_eq!(change(pointer, value), (true, true), "{pointer}");
        }
        let both = Woken { bundle: true, cluster: true };
        assert_eq!((wakes(None, Some(&before)), wakes(Some(&before), None)), (both, both));
    }
}
