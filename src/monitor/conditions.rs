// SPDX-License-Identifier: Apache-2.0
//! The conditions of a BundleDeployment, written the way Fleet's agent writes them.

use crate::api::Condition;

/// The release could be installed at all; false only after a failure that no retry can mend.
pub const INSTALLED: &str = "Installed";
/// The deployment itself went through.
pub const DEPLOYED: &str = "Deployed";
/// Everything is ready and as deployed.
pub const READY: &str = "Ready";
/// The live objects could be looked at.
pub const MONITORED: &str = "Monitored";

/// The reason of a false condition. Fleet's controller and Rancher read exactly this word as a failure.
pub const ERROR_REASON: &str = "Error";

/// The reason of a true condition [`READY`] of a release without objects: nothing is ready, since nothing is there.
pub const NO_RESOURCES: &str = "NoResources";
/// What it says.
const NOTHING: &str = "the bundle has no objects";

/// Sets [`READY`] of a release that has no objects: true, and not silently. `now` as in [`set`].
pub fn set_empty(conditions: &mut Vec<Condition>, now: &str) {
    write(conditions, READY, ("True", NO_RESOURCES, NOTHING), now);
}

/// Sets one condition: true when `ok`, else false with the message.
///
/// `now` is RFC 3339 with seconds, and is written only when status or message change, so that saying the same again
/// changes nothing. A new condition goes to the end: the list keeps the order of first use.
pub fn set(conditions: &mut Vec<Condition>, type_: &str, ok: Result<(), &str>, now: &str) {
    let said = match ok {
        Ok(()) => ("True", "", ""),
        Err(message) => ("False", ERROR_REASON, message),
    };
    write(conditions, type_, said, now);
}

fn write(
    conditions: &mut Vec<Condition>,
    type_: &str,
    (status, reason, message): (&str, &str, &str),
    now: &str,
) {
    let index = conditions.iter().position(|condition| condition.type_ == type_).unwrap_or_else(|| {
        conditions.push(Condition { type_: type_.to_owned(), ..Condition::default() });
        conditions.len() - 1
    });
    let condition = &mut conditions[index];
    if condition.status != status || condition.message != message {
        now.clone_into(&mut condition.last_update_time);
    }
    status.clone_into(&mut condition.status);
    reason.clone_into(&mut condition.reason);
    message.clone_into(&mut condition.message);
}

#[cfg(test)]
mod tests {
    use super::*;

    const THEN: &str = "2026-01-02T03:04:05Z";
    const NOW: &str = "2026-01-02T03:09:05Z";

    #[test]
    fn a_true_condition_has_neither_reason_nor_message() {
        let mut conditions = Vec::new();
        set(&mut conditions, DEPLOYED, Err("broken"), THEN);
        set(&mut conditions, DEPLOYED, Ok(()), NOW);
        let expected = Condition {
            type_: "Deployed".into(),
            status: "True".into(),
            last_update_time: NOW.into(),
            ..Condition::default()
        };
        assert_eq!(conditions, [expected]);
    }

    #[test]
    fn nothing_to_be_ready_is_said_once_and_taken_back() {
        let mut conditions = Vec::new();
        set_empty(&mut conditions, THEN);
        set_empty(&mut conditions, NOW);
        let ready = &conditions[0];
        assert_eq!((&*ready.status, &*ready.reason, &*ready.message), ("True", NO_RESOURCES, NOTHING));
        assert_eq!(ready.last_update_time, THEN);
        set(&mut conditions, READY, Ok(()), NOW);
        assert_eq!((&*conditions[0].reason, &*conditions[0].message), ("", ""));
        assert_eq!(conditions[0].last_update_time, NOW);
    }

    #[test]
    fn a_false_condition_has_the_reason_that_other_tools_look_for() {
        let mut conditions = Vec::new();
        set(&mut conditions, READY, Err("not yet"), NOW);
        let expected = Condition {
            type_: "Ready".into(),
            status: "False".into(),
            last_update_time: NOW.into(),
            reason: "Error".into(),
            message: "not yet".into(),
            ..Condition::default()
        };
        assert_eq!(conditions, [expected]);
    }

    #[test]
    fn saying_the_same_again_does_not_touch_the_time() {
        let mut conditions = Vec::new();
        set(&mut conditions, READY, Err("not yet"), THEN);
        let before = conditions.clone();
        set(&mut conditions, READY, Err("not yet"), NOW);
        assert_eq!(conditions, before);
        set(&mut conditions, READY, Err("still not"), NOW);
        assert_eq!(conditions[0].last_update_time, NOW);
    }

    #[test]
    fn conditions_stay_in_the_order_of_their_first_use_and_strangers_are_left_alone() {
        let claim = Condition { type_: "InProgress".into(), status: "True".into(), ..Condition::default() };
        let mut conditions = vec![claim.clone()];
        for type_ in [INSTALLED, DEPLOYED, READY, MONITORED, DEPLOYED] {
            set(&mut conditions, type_, Ok(()), NOW);
        }
        let types: Vec<_> = conditions.iter().map(|condition| condition.type_.as_str()).collect();
        assert_eq!(types, ["InProgress", "Installed", "Deployed", "Ready", "Monitored"]);
        assert_eq!(conditions[0], claim);
    }
}
