// SPDX-License-Identifier: Apache-2.0
//! One look at a unit: what lives against what is wanted, and the status that tells it.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tracing::debug;

use super::{
    around::{self, Marks},
    attempt::is_correctable,
    context::Context,
    correction::Corrections,
    drift, history,
    inbox::Name,
    monitoring::{Outcome, Seen},
    outage::{self, Unseen},
    plan::{self, Plan, PlanError},
};
use crate::{
    api::{self, BundleDeployment},
    downstream::namespace::NamespaceError,
    monitor::Evaluation,
    monitor::conditions::{DEPLOYED, INSTALLED, MONITORED, READY},
    protocol::ClaimSlot,
    telemetry::metrics::UpstreamWrite,
    upstream::{
        self, Answer,
        fields::{self, Fields},
    },
};

/// A reason why nothing can be looked at stands this long before another one replaces it.
const RETELL: Duration = Duration::from_secs(60);

/// What a look is given beside the object.
pub(super) struct Given {
    /// Which dependencies are not ready.
    pub waits_for: Option<String>,
    /// How long what is not right around the bundle is only told.
    pub rest: Duration,
    /// Somebody touched the unit: its record is looked for, too.
    pub touched: bool,
    /// Corrections that did not last.
    pub corrections: Corrections,
    /// Why nothing at all can be seen.
    pub outage: Option<String>,
    /// That it cannot be seen was told, and counts for nothing.
    pub contradicted: bool,
    /// Looks have failed for so long that it is told.
    pub lasts: bool,
}

/// Compares what lives with what the status says, and writes the difference.
pub(super) async fn look(
    ctx: &Arc<Context>,
    name: &Name,
    object: &Arc<BundleDeployment>,
    plan: Option<Arc<Plan>>,
    given: Given,
) -> Outcome {
    let Given { waits_for, rest, touched, corrections, outage: cannot, contradicted, lasts } = given;
    let Ok(_permit) = ctx.monitors.acquire().await else { return Outcome::Again(None) };
    if let Some(cause) = cannot {
        return outage::tell(ctx, name, object, plan, Unseen { cause, contradicted }).await;
    }
    let status = object.status.clone().unwrap_or_default();
    let plan = match plan.filter(|plan| plan.release.to_string() == status.release) {
        Some(plan) => {
            if touched && let Ok(false) = ctx.downstream.store.has(&plan.release).await {
                return Outcome::RecordGone;
            }
            plan
        }
        None => match plan::load(ctx, name, &status.release).await {
            Ok(plan) => Arc::new(plan),
            // A name that is none names no record either: what was written there by somebody else would stay for ever.
            Err(PlanError::Gone { .. } | PlanError::Name(_)) => return Outcome::RecordGone,
            Err(error) => {
                let failure = Failure { plan: None, error, lasts, contradicted };
                return failed(ctx, name, object, failure).await;
            }
        },
    };
    let compared_in = match compared(ctx, name, object, &plan).await {
        Ok(compared_in) => compared_in,
        Err(PlanError::Gone { .. }) => return Outcome::RecordGone,
        Err(error @ PlanError::Lost { .. }) => {
            let unseen = Unseen { cause: upstream::chain(&error), contradicted };
            return outage::tell(ctx, name, object, Some(plan), unseen).await;
        }
        Err(error) => {
            let failure = Failure { plan: Some(plan), error, lasts, contradicted };
            return failed(ctx, name, object, failure).await;
        }
    };
    match plan::evaluate(ctx, name, object, &plan).await {
        Ok(_) if history::is_lost(ctx, object, &plan).await => Outcome::HistoryLost,
        Ok(evaluation) => {
            if rest.is_zero() && around::was_taken(&object.options(), &evaluation.modified) {
                let what = "an object that another bundle gave up is missing";
                return Outcome::PutRight { what, pace: around::REMAKE_PACE };
            }
            let marks = around::marks(ctx, object, &plan.release.namespace).await;
            if rest.is_zero() && matches!(marks, Marks::Wrong) {
                let what = "the namespace is not labelled and annotated as the bundle says";
                return Outcome::PutRight { what, pace: around::NAMESPACE_PACE };
            }
            let may_not = around::objection(ctx, object, &plan.release.namespace).await;
            let mut changes_in =
                evaluation.changes_at.map(|moment| (moment - ctx.clock.wall()).to_std().unwrap_or_default());
            let found = drift::found(ctx, &plan);
            let manager = found.as_ref().and_then(|(_, drift)| drift.manager.as_deref());
            // What is wanted could not be deployed: there is nothing to go back to.
            let correctable = is_correctable(&evaluation) && !is_rejected(object);
            let drift = Some(Seen {
                deployment: object.spec.deployment_id.clone(),
                correctable,
                contention: corrections.contention(ctx.clock.now(), manager).filter(|_| correctable),
            });
            let mut fields = told(object, evaluation, drift.as_ref());
            let mut again = |wait: Duration| changes_in = Some(changes_in.unwrap_or(wait).min(wait));
            if let Some(wait) = compared_in {
                again(wait);
            }
            match marks {
                Marks::Right => {}
                Marks::Wrong => {
                    around::keep_telling_marks(&mut fields, object);
                    again(rest);
                }
                Marks::Forbidden(text) => {
                    around::tell_marks(&mut fields, &text);
                    again(around::NAMESPACE_PACE);
                }
                Marks::Unclear => {
                    around::keep_telling_marks(&mut fields, object);
                    again(around::NAMESPACE_PACE);
                }
            }
            if may_not.is_some() {
                again(around::TARGET_PACE);
            }
            // In Fleet's order.
            if let Some(text) = may_not.or(waits_for) {
                around::tell_objection(&mut fields, text);
            }
            match write(ctx, name, object, &fields).await {
                None => Outcome::Same { plan, changes_in, drift },
                Some(Ok(object)) => Outcome::Written { plan: Some(plan), object, changes_in, drift },
                Some(Err(cause)) => Outcome::Again(cause),
            }
        }
        Err(error) => {
            let failure = Failure { plan: Some(plan), error, lasts, contradicted };
            failed(ctx, name, object, failure).await
        }
    }
}

/// Whether what is wanted failed for good over something that stands: that and no more is monitored. Of a namespace that
/// is not as it should the status tells in the same form, but what is wanted stands.
fn is_rejected(object: &BundleDeployment) -> bool {
    object.condition(INSTALLED).is_some_and(|condition| {
        let text = condition.message.strip_prefix("not installed: ");
        condition.status == "False" && text.is_some_and(|text| !NamespaceError::is_told(text))
    })
}

/// Compares the objects that there is reason to compare. Says in what time one is to be compared again.
async fn compared(
    ctx: &Context,
    name: &Name,
    object: &BundleDeployment,
    plan: &Plan,
) -> Result<Option<Duration>, PlanError> {
    if let Some(lost) = plan::watch(ctx, name, object, plan).await? {
        return Err(lost);
    }
    drift::look(ctx, name, object, plan).await
}

/// What the status is to say. While a correction backs off, its error stays in `Ready` for as long as there is drift, and
/// so do the conditions that a failed deployment left.
fn told(object: &BundleDeployment, evaluation: Evaluation, drift: Option<&Seen>) -> Fields {
    let (changed, ready) = (is_correctable(&evaluation), evaluation.ready);
    let mut fields = plan::fields(evaluation, object);
    if is_rejected(object) {
        // What is wanted could not be deployed and waits for a change: its own conditions stay, and it is not ready,
        // however well what stands is.
        fields.conditions.clear();
        if let Some(observed) = &mut fields.observed {
            observed.ready = false;
        }
        fields.conditions.push((MONITORED, Ok(())));
        return fields;
    }
    let resting = upstream::snapshot(object, false).slot.is_backing_off();
    if resting && changed && ready {
        fields.conditions.clear();
    } else if let Some(contention) = drift.and_then(|drift| drift.contention.as_deref())
        && let [(READY, Err(message))] = &mut fields.conditions[..]
    {
        *message += &format!("; {contention}");
    }
    if !resting {
        fields.conditions.insert(0, (DEPLOYED, Ok(())));
        fields.conditions.insert(0, (INSTALLED, Ok(())));
    }
    fields.conditions.push((MONITORED, Ok(())));
    fields
}

/// A look that failed.
struct Failure {
    plan: Option<Arc<Plan>>,
    error: PlanError,
    /// And so did all others for long.
    lasts: bool,
    /// Somebody who sees may contradict.
    contradicted: bool,
}

impl Failure {
    /// Whether the status is to say so. What the server says of this very unit is told at once, again when it says
    /// something else; that it gave no usable answer is told once, when that has lasted.
    fn is_told(&self, object: &BundleDeployment, now: DateTime<Utc>) -> bool {
        let said = object.condition(MONITORED).is_some_and(|condition| condition.status == "False");
        match self.error.is_passing() {
            true => self.lasts && !said && !self.contradicted,
            false => !was_told_lately(object, now),
        }
    }
}

/// The unit could not be looked at: `Monitored` says so, and what was known last stays.
async fn failed(
    ctx: &Arc<Context>,
    name: &Name,
    object: &Arc<BundleDeployment>,
    failure: Failure,
) -> Outcome {
    let cause = upstream::chain(&failure.error);
    let mut told = None;
    if failure.is_told(object, ctx.clock.wall()) {
        let fields = Fields { conditions: vec![(MONITORED, Err(cause.clone()))], ..Fields::default() };
        told = write(ctx, name, object, &fields).await.and_then(Result::ok);
    }
    Outcome::Failed { plan: failure.plan, cause, told }
}

/// Whether `Monitored` has said for less than [`RETELL`] why not. Of a server in trouble each try tells something else.
fn was_told_lately(object: &BundleDeployment, now: DateTime<Utc>) -> bool {
    let told = object.condition(MONITORED).filter(|condition| condition.status == "False");
    let at = told.and_then(|condition| DateTime::parse_from_rfc3339(&condition.last_update_time).ok());
    at.is_some_and(|at| (now - at.to_utc()).abs().to_std().is_ok_and(|passed| passed < RETELL))
}

/// Dependencies that are not ready are told without a claim: nothing is done that could be done twice.
pub(super) async fn tell_blocked(
    ctx: &Arc<Context>,
    name: &Name,
    object: &Arc<BundleDeployment>,
    text: String,
) -> Outcome {
    let fields = Fields { conditions: vec![(DEPLOYED, Err(text))], ..Fields::default() };
    match write(ctx, name, object, &fields).await {
        Some(Ok(object)) => Outcome::Written { plan: None, object, changes_in: None, drift: None },
        Some(Err(cause)) => Outcome::Again(cause),
        None => {
            let plan = Arc::new(Plan::empty(api::ReleaseId::default()));
            Outcome::Same { plan, changes_in: None, drift: None }
        }
    }
}

/// Writes what differs, under the version that was judged (S4). `None`: nothing does.
pub(super) async fn write(
    ctx: &Context,
    name: &Name,
    object: &Arc<BundleDeployment>,
    fields: &Fields,
) -> Option<Result<Box<BundleDeployment>, Option<String>>> {
    let before = object.status.clone().unwrap_or_default();
    let mut after = fields.merged_into(&before, &ctx.clock.stamp());
    if upstream::snapshot(object, false).slot == ClaimSlot::Empty {
        // What somebody wrote in its place, and is none.
        fields::set_claim(&mut after.conditions, None, "");
    }
    let version = object.metadata.resource_version.clone().unwrap_or_default();
    for cut in [false, true] {
        if cut {
            fields::cut(&mut after);
        }
        let patch = fields::patch(object, &version, &before, &after)?;
        ctx.metrics.upstream_write(UpstreamWrite::Monitor);
        match ctx.upstream.patch_status(name, &patch).await {
            Answer::Written(object) => {
                if let Some((_, Err(message))) = fields.conditions.iter().find(|(type_, _)| *type_ == READY) {
                    debug!(unit = %name, cause = message, "not ready");
                }
                return Some(Ok(object));
            }
            Answer::Conflict | Answer::Absent => return Some(Err(None)),
            Answer::TooLarge if !cut => {}
            Answer::TooLarge => return Some(Err(Some("the status is too large".into()))),
            Answer::Unclear(cause) | Answer::Denied(cause) => return Some(Err(Some(cause))),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::downstream::server::RequestError;

    #[test]
    fn a_namespace_that_could_not_be_marked_is_no_rejection() {
        let rejected = |message: &str| {
            let condition = json!({"type": INSTALLED, "status": "False", "message": message});
            let object = json!({"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
                "metadata": {"name": "web"}, "spec": {}, "status": {"conditions": [condition]}});
            is_rejected(&serde_json::from_value(object).unwrap())
        };
        assert!(rejected("not installed: spec.selector: Invalid value: {}: field is immutable"));
        assert!(!rejected("not installed: cannot get namespace \"web\": no answer"));
        assert!(!rejected("something else"));
    }

    #[test]
    fn what_the_server_says_is_told_at_once_and_that_it_says_nothing_when_that_lasts() {
        let now: DateTime<Utc> = "2026-01-01T12:00:00Z".parse().unwrap();
        let refused = |code: u16| {
            let status = kube::core::Status::failure("no", "X").with_code(code).boxed();
            let source = RequestError::Refused(status);
            PlanError::Look { object: "ConfigMap a/b".into(), source }
        };
        let silent = || {
            let source = RequestError::Silent(std::time::Duration::from_secs(30));
            PlanError::Look { object: "ConfigMap a/b".into(), source }
        };
        let told = |error, lasts, contradicted, status: &str| {
            let condition =
                json!({"type": MONITORED, "status": status, "lastUpdateTime": "2026-01-01T11:00:00Z"});
            let object = json!({"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
                "metadata": {"name": "web"}, "spec": {}, "status": {"conditions": [condition]}});
            let object = serde_json::from_value(object).unwrap();
            Failure { plan: None, error, lasts, contradicted }.is_told(&object, now)
        };
        assert!(told(refused(403), false, false, "True"), "it is about this unit");
        assert!(told(refused(403), false, false, "False"), "another reason than an hour ago, perhaps");
        for code in [None, Some(500), Some(503), Some(429), Some(401)] {
            let error = || code.map_or_else(silent, refused);
            assert!(!told(error(), false, false, "True"), "one failed request says nothing");
            assert!(told(error(), true, false, "True"));
            assert!(!told(error(), true, true, "True"), "somebody else may see");
            assert!(!told(error(), true, false, "False"), "told once is enough");
        }
    }

    #[test]
    fn a_reason_stands_for_a_while() {
        let now: DateTime<Utc> = "2026-01-01T12:00:00Z".parse().unwrap();
        let lately = |status: &str, at: &str| {
            let condition = json!({"type": MONITORED, "status": status, "lastUpdateTime": at});
            let object = json!({"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
                "metadata": {"name": "web"}, "spec": {}, "status": {"conditions": [condition]}});
            was_told_lately(&serde_json::from_value(object).unwrap(), now)
        };
        assert!(lately("False", "2026-01-01T11:59:01Z") && lately("False", "2026-01-01T12:00:30Z"));
        assert!(!lately("False", "2026-01-01T11:59:00Z") && !lately("False", "2026-01-01T14:00:00Z"));
        assert!(!lately("True", "2026-01-01T11:59:59Z") && !lately("False", "no time"));
    }
}
