// SPDX-License-Identifier: Apache-2.0
//! Which objects of a release are compared with what is wanted, and what is remembered of that.
//!
//! An object is compared only when there is reason to: a field of ours was taken, or somebody wrote an object that is
//! no longer wholly ours. What was compared once is not compared again until its owners change, so that a steady state
//! asks nothing, and neither does a start: the release record tells which fields were ours when they were applied.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt, stream};

use super::{
    context::Context,
    inbox::Name,
    monitoring::{AGAIN, PACE},
    plan::{self, Plan, PlanError},
};
use crate::{
    api::{self, BundleDeployment, ComparePatch, ModifiedStatus},
    downstream::drift::{self as asked, Drift, Question, Verdict},
    monitor::{Digest, Key, Live, Observed, Owners, drift::Rules},
    protocol::Time,
    render::{self, Object},
};

/// Objects of one unit compared at once. Units looked at together have a limit of their own.
const AT_ONCE: usize = 4;
/// How long a judgement stands that depends on an autoscaler: no change of that shows in the object it scales.
const SCALED: Duration = Duration::from_secs(30);

/// What is remembered of the objects of one revision, in the order of its plan.
#[derive(Debug, Default)]
pub struct Memory {
    checks: Mutex<Checks>,
    /// The digest in the release record, until it was compared with what lives.
    recorded: Mutex<Option<u64>>,
}

#[derive(Debug, Default)]
struct Checks {
    list: Vec<Check>,
    /// The rules the comparisons were made by.
    rules: Vec<ComparePatch>,
}

/// What is remembered of one object.
#[derive(Clone, Debug, Default)]
struct Check {
    /// The set of our fields when all of them were ours.
    whole: Option<u64>,
    /// Such a set tells nothing: what is written is not what is stored, as with `stringData`. Others' writes count.
    opaque: bool,
    /// How it stood when it was whole, for those that are opaque.
    others: u64,
    /// A Job that goes by itself after its end.
    goes: bool,
    /// Whether it was last seen before its end; `None` when it was never seen.
    unfinished: Option<bool>,
    /// The last comparison.
    judged: Option<Judged>,
    /// It could not be compared, and is not asked about again before then.
    rests_until: Time,
}

#[derive(Clone, Debug)]
struct Judged {
    uid: String,
    owners: Owners,
    drift: Option<Arc<Drift>>,
    /// Until when it stands; `None` while nobody takes or gives back a field.
    until: Option<Time>,
}

impl Check {
    fn of(object: &Object) -> Self {
        let goes = object.kind == "Job"
            && object.api_version.starts_with("batch/")
            && !object.value["spec"]["ttlSecondsAfterFinished"].is_null();
        let opaque = object.kind == "Secret" && !object.value["stringData"].is_null();
        Self { goes, opaque, ..Self::default() }
    }

    /// In what time it must be compared, if at all.
    fn due_in(&self, live: &Observed, now: Time) -> Option<Duration> {
        if self.is_whole(live.owners) {
            return None;
        }
        let as_judged = |judged: &&Judged| judged.uid == live.uid && judged.owners == live.owners;
        let at = match self.judged.as_ref().filter(as_judged) {
            Some(judged) => judged.until?,
            None => Time::default(),
        };
        Some(at.max(self.rests_until).saturating_sub(now))
    }

    /// Notes whether a Job has ended; `live` if it is there and has. What went after its end is not missing. Of one that
    /// was never seen, only the status may tell that somebody took it away before.
    fn note_end(&mut self, live: Option<bool>, ended: impl FnOnce() -> bool, missing: impl FnOnce() -> bool) {
        match live {
            Some(finished) => self.unfinished = Some(!finished),
            None if ended() => self.unfinished = Some(false),
            None if self.unfinished.is_none() && missing() => self.unfinished = Some(true),
            None => {}
        }
    }

    /// Whether everything of ours is still ours, and so as we wrote it.
    fn is_whole(&self, owners: Owners) -> bool {
        let whole = self.whole.is_some() && self.whole == owners.managed;
        whole && (!self.opaque || self.others == owners.others)
    }

    fn drift(&self, live: &Observed) -> Option<&Arc<Drift>> {
        let judged = self.judged.as_ref()?;
        if judged.uid != live.uid || self.is_whole(live.owners) {
            return None;
        }
        // The owners of an object that is being written all the time are always new; what was found stands until it is
        // compared again.
        judged.drift.as_ref()
    }
}

impl Memory {
    /// Of objects that have just been applied: these owners say that all their fields are ours.
    pub fn applied(objects: &[Object], desired: &[Key], applied: &HashMap<Key, Owners>) -> Self {
        let list = objects.iter().zip(desired).map(|(object, key)| {
            let owners = applied.get(key).copied().unwrap_or_default();
            Check { whole: owners.managed, others: owners.others, ..Check::of(object) }
        });
        Self { checks: Mutex::new(Checks { list: list.collect(), ..Checks::default() }), ..Self::default() }
    }

    /// Of objects that somebody applied; `recorded` is the digest in the release record.
    pub fn loaded(objects: &[Object], recorded: Option<u64>) -> Self {
        let checks = Checks { list: objects.iter().map(Check::of).collect(), ..Checks::default() };
        Self { checks: Mutex::new(checks), recorded: Mutex::new(recorded) }
    }

    /// The digest for the release record; `None` when not all fields are known to be ours.
    pub fn digest(&self, desired: &[Key]) -> Option<u64> {
        let checks = self.checks();
        digest(desired, &checks.list, |index| {
            let check = &checks.list[index];
            Some(Owners { managed: Some(check.whole?), others: check.others })
        })
    }

    fn checks(&self) -> MutexGuard<'_, Checks> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what the record says, if it still describes what lives.
    fn compare_with_record(&self, ctx: &Context, desired: &[Key]) {
        let recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(recorded) = recorded else { return };
        let mut checks = self.checks();
        let live: Vec<Option<Owners>> =
            desired.iter().map(|key| ctx.live.get(key).map(|live| live.owners)).collect();
        if digest(desired, &checks.list, |index| live[index]) == Some(recorded) {
            for (check, owners) in checks.list.iter_mut().zip(live.into_iter().flatten()) {
                (check.whole, check.others) = (owners.managed, owners.others);
            }
        }
    }
}

fn digest(desired: &[Key], checks: &[Check], owners: impl Fn(usize) -> Option<Owners>) -> Option<u64> {
    let mut digest = Digest::default();
    for (index, (key, check)) in desired.iter().zip(checks).enumerate() {
        let owners = owners(index)?;
        for text in [&*key.api_version, &key.kind, &key.namespace, &key.name] {
            digest.text(text);
        }
        digest.text(&owners.managed?.to_string());
        if check.opaque {
            digest.text(&owners.others.to_string());
        }
    }
    Some(digest.0)
}

/// What is known of the objects that the server need not be asked about again.
pub(super) struct Known<'a> {
    checks: MutexGuard<'a, Checks>,
    index: HashMap<&'a Key, usize>,
    rules: Rules<'a>,
}

impl<'a> Known<'a> {
    pub fn of(plan: &'a Plan, options: &'a [ComparePatch]) -> Self {
        let index = plan.desired.iter().enumerate().map(|(index, key)| (key, index)).collect();
        Self { checks: plan.memory.checks(), index, rules: Rules::new(options) }
    }

    /// A live object of ours, with its drift if it has any.
    pub fn live(&self, key: &Key, live: Arc<Observed>) -> Live {
        let check = self.index.get(key).and_then(|index| self.checks.list.get(*index));
        match check.and_then(|check| check.drift(&live)) {
            Some(drift) => Live::Modified(live, drift.patch.as_str().into()),
            None => Live::Ours(live),
        }
    }

    /// Whether an object may be missing: the user says so, or it has done its work.
    pub fn may_miss(&self, key: &Key) -> bool {
        let check = self.index.get(key).and_then(|index| self.checks.list.get(*index));
        self.rules.may_miss(key) || check.is_some_and(|check| check.goes && check.unfinished != Some(true))
    }
}

/// Notes which Jobs have not ended yet: of these, one that vanishes is missing.
pub(super) fn note_jobs(ctx: &Context, object: &BundleDeployment, plan: &Plan) {
    let told = object.status.as_ref().filter(|status| status.release == plan.release.to_string());
    let told = told.map_or(&[][..], |status| &status.modified_status);
    for (key, check) in plan.desired.iter().zip(&mut plan.memory.checks().list) {
        if check.goes {
            let live = ctx.live.get(key).map(|live| live.finished);
            check.note_end(live, || ctx.live.has_ended(key), || is_told_missing(told, key));
        }
    }
}

fn is_told_missing(told: &[ModifiedStatus], key: &Key) -> bool {
    told.iter().any(|entry| {
        entry.missing
            && (&*entry.api_version, &*entry.kind) == (&*key.api_version, &*key.kind)
            && (&*entry.namespace, &*entry.name) == (&*key.namespace, &*key.name)
    })
}

/// A foreign change that was found, and in which object.
pub(super) fn found(ctx: &Context, plan: &Plan) -> Option<(Key, Arc<Drift>)> {
    let checks = plan.memory.checks();
    let mut objects = plan.desired.iter().zip(&checks.list);
    objects.find_map(|(key, check)| Some((key.clone(), check.drift(&*ctx.live.get(key)?)?.clone())))
}

/// Compares what there is reason to compare. Says in what time something is to be looked at again: it changed meanwhile,
/// could not be compared, or depends on what no watch shows.
pub(super) async fn look(
    ctx: &Context,
    name: &Name,
    object: &BundleDeployment,
    plan: &Plan,
) -> Result<Option<Duration>, PlanError> {
    let options = object.options();
    let now = ctx.clock.now();
    let mut again: Option<Duration> = None;
    let mut wait = |time: Duration| again = Some(again.map_or(time, |known| known.min(time)));
    let patches = options.diff.as_ref().map_or(&[][..], |diff| &diff.compare_patches);
    let hash = api::names::object_hash(&api::names::set_id(name, &ctx.scope));
    plan.memory.compare_with_record(ctx, &plan.desired);
    let suspicious: Vec<usize> = {
        let mut checks = plan.memory.checks();
        if checks.rules != patches {
            checks.rules = patches.to_vec();
            checks.list.iter_mut().for_each(|check| check.judged = None);
        }
        let live = |key| match ctx.live.lookup(key, &hash) {
            Live::Ours(live) => Some(live),
            _ => None,
        };
        let list = plan.desired.iter().zip(&mut checks.list).enumerate();
        list.filter_map(|(index, (key, check))| match live(key) {
            Some(live) => match check.due_in(&live, now)? {
                Duration::ZERO => Some(index),
                later => {
                    wait(later);
                    None
                }
            },
            None => {
                check.judged = None;
                None
            }
        })
        .collect()
    };
    if suspicious.is_empty() {
        return Ok(again);
    }
    let objects = plan::objects(ctx, &plan.release).await?;
    let keys = plan::keys(ctx, &objects, &plan.release.namespace).await?;
    let by_key: HashMap<&Key, &Object> = keys.iter().zip(&objects).collect();
    let rules = Rules::new(patches);
    let comparisons: Vec<_> = suspicious
        .into_iter()
        .filter_map(|index| Some(compare(ctx, plan, index, *by_key.get(&plan.desired[index])?, rules)))
        .collect();
    let verdicts: Vec<Result<(usize, Verdict), PlanError>> =
        stream::iter(comparisons).buffered(AT_ONCE).collect().await;
    let mut failed = None;
    let mut checks = plan.memory.checks();
    for verdict in verdicts {
        match verdict {
            Ok((index, Verdict::Judged { uid, owners, drift, scaled })) => {
                let until = scaled.then(|| now + SCALED);
                if scaled {
                    wait(SCALED);
                }
                checks.list[index].judged = Some(Judged { uid, owners, drift: drift.map(Arc::new), until });
            }
            Ok((_, Verdict::Changed)) => wait(PACE),
            // What was found before stands.
            Ok((index, Verdict::Unclear)) => {
                checks.list[index].rests_until = now + AGAIN;
                wait(AGAIN);
            }
            // The first in the order of the plan, so that it is always the same one that is told.
            Err(error) => drop(failed.get_or_insert(error)),
        }
    }
    failed.map_or(Ok(again), Err)
}

async fn compare(
    ctx: &Context,
    plan: &Plan,
    index: usize,
    object: &Object,
    rules: Rules<'_>,
) -> Result<(usize, Verdict), PlanError> {
    let key = &plan.desired[index];
    let kind = plan::kind(ctx, key).await?;
    let rules = rules.of(key);
    let release = (plan.release.name.as_str(), plan.release.namespace.as_str());
    let question = Question { release, object, kind: &kind, key, rules: &rules };
    asked::judge(&ctx.downstream, &question)
        .await
        .map(|verdict| (index, verdict))
        .map_err(|source| PlanError::Look { object: key.to_string(), source })
}

/// The objects as a correction applies them: without those that need not be there, and with what the user overlooks
/// or an autoscaler decides kept as it is.
pub(super) async fn settled(
    ctx: &Context,
    object: &BundleDeployment,
    plan: &Plan,
    objects: Vec<Object>,
) -> Result<Vec<Object>, PlanError> {
    let options = object.options();
    let patches = options.diff.as_ref().map_or(&[][..], |diff| &diff.compare_patches);
    let rules = Rules::new(patches);
    note_jobs(ctx, object, plan);
    let spared: Vec<bool> = {
        let known = Known::of(plan, patches);
        plan.desired.iter().map(|key| known.may_miss(key) && ctx.live.get(key).is_none()).collect()
    };
    let mut settled = Vec::with_capacity(objects.len());
    for (index, mut object) in objects.into_iter().enumerate() {
        let (Some(key), Some(false)) = (plan.desired.get(index), spared.get(index)) else { continue };
        let of_object = rules.of(key);
        if of_object.paths().next().is_some() || leaves_fields(&object) {
            let kind = plan::kind(ctx, key).await?;
            let release = (plan.release.name.as_str(), plan.release.namespace.as_str());
            let question = Question { release, object: &object, kind: &kind, key, rules: &of_object };
            object.value = asked::settled(&ctx.downstream, &question)
                .await
                .map_err(|source| PlanError::Look { object: key.to_string(), source })?;
        }
        settled.push(object);
    }
    Ok(settled)
}

/// Whether fields of it may be another's: replicas an autoscaler's, rules an aggregation's, certificates an injector's.
fn leaves_fields(object: &render::Object) -> bool {
    let value = &object.value;
    !value["spec"]["replicas"].is_null()
        || !value["aggregationRule"].is_null()
        || value["webhooks"].is_array()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(value: Value) -> Object {
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        Object {
            api_version: text("apiVersion"),
            kind: text("kind"),
            namespace: "ns".into(),
            name: "x".into(),
            value,
        }
    }

    fn owners(managed: u64, others: u64) -> Owners {
        Owners { managed: Some(managed), others }
    }

    fn live(owners: Owners) -> Observed {
        let fields = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x", "uid": "u"}});
        let (ignore, errors) = (Default::default(), Default::default());
        let judge = crate::monitor::Judge { ignore: &ignore, errors: &errors, now: Default::default() };
        let mut observed = crate::monitor::observe(&fields, &judge);
        observed.owners = owners;
        observed
    }

    fn due(check: &Check, owners: Owners) -> bool {
        check.due_in(&live(owners), Time::default()).is_some()
    }

    #[test]
    fn an_object_is_compared_once_whenever_there_is_reason() {
        let plain = Check { whole: Some(1), ..Check::of(&object(json!({"kind": "Secret", "data": {}}))) };
        assert!(!due(&plain, owners(1, 0)));
        assert!(!due(&plain, owners(1, 9)), "what others wrote took nothing of ours");
        assert!(due(&plain, owners(2, 9)));
        let judged = |uid: &str| Judged { uid: uid.into(), owners: owners(2, 9), drift: None, until: None };
        let compared = Check { judged: Some(judged("u")), ..plain.clone() };
        assert!(!due(&compared, owners(2, 9)));
        assert!(due(&compared, owners(2, 10)));
        assert!(due(&Check { judged: Some(judged("v")), ..plain }, owners(2, 9)));

        let strings = json!({"kind": "Secret", "stringData": {"a": "1"}});
        let opaque = Check { whole: Some(1), others: 3, ..Check::of(&object(strings)) };
        assert!(!due(&opaque, owners(1, 3)));
        assert!(due(&opaque, owners(1, 4)));
        assert!(due(&Check::default(), Owners::default()));
    }

    #[test]
    fn what_depends_on_an_autoscaler_is_compared_again_after_a_while_and_what_was_unclear_too() {
        let at = |seconds| Time::from(Duration::from_secs(seconds));
        let state = live(owners(2, 9));
        let judged = Judged { uid: "u".into(), owners: owners(2, 9), drift: None, until: Some(at(100)) };
        let scaled = Check { judged: Some(judged), ..Check::default() };
        assert_eq!(scaled.due_in(&state, at(70)), Some(Duration::from_secs(30)));
        assert_eq!(scaled.due_in(&state, at(100)), Some(Duration::ZERO));
        assert_eq!(scaled.due_in(&live(owners(2, 10)), at(70)), Some(Duration::ZERO));
        let unclear = Check { rests_until: at(80), ..Check::default() };
        assert_eq!(unclear.due_in(&state, at(70)), Some(Duration::from_secs(10)));
        assert_eq!(unclear.due_in(&state, at(80)), Some(Duration::ZERO));
    }

    #[test]
    fn a_job_that_went_after_its_end_is_not_missing_and_one_that_was_taken_away_stays_so() {
        let noted = |check: Check, live, ended, missing| {
            let mut check = check;
            check.note_end(live, || ended, || missing);
            check
        };
        let seen = |finished| noted(Check::default(), Some(finished), false, false);
        assert_eq!(seen(false).unfinished, Some(true));
        assert_eq!(noted(seen(false), None, false, false).unfinished, Some(true), "taken away");
        assert_eq!(noted(seen(false), None, true, false).unfinished, Some(false), "ended between two looks");
        assert_eq!(noted(seen(true), None, false, true).unfinished, Some(false), "the status is older");
        assert_eq!(noted(Check::default(), None, false, true).unfinished, Some(true), "by another replica");
        assert_eq!(noted(Check::default(), None, true, true).unfinished, Some(false));
        assert_eq!(noted(Check::default(), None, false, false).unfinished, None);

        let key = Key::new("batch/v1", "Job", "ns", "seed");
        let entry = |name: &str, missing| ModifiedStatus {
            api_version: "batch/v1".into(),
            kind: "Job".into(),
            namespace: "ns".into(),
            name: name.into(),
            missing,
            ..ModifiedStatus::default()
        };
        assert!(is_told_missing(&[entry("other", true), entry("seed", true)], &key));
        assert!(!is_told_missing(&[entry("other", true), entry("seed", false)], &key));
    }

    #[test]
    fn the_digest_in_the_record_tells_whether_anything_was_taken() {
        let objects =
            [object(json!({"kind": "ConfigMap"})), object(json!({"kind": "Secret", "stringData": {}}))];
        let desired = [Key::new("v1", "ConfigMap", "ns", "x"), Key::new("v1", "Secret", "ns", "x")];
        let of = |map: [Owners; 2]| {
            let applied: HashMap<Key, Owners> = desired.iter().cloned().zip(map).collect();
            Memory::applied(&objects, &desired, &applied).digest(&desired)
        };
        let before = of([owners(1, 0), owners(2, 0)]);
        assert!(before.is_some());
        assert_eq!(of([owners(1, 7), owners(2, 0)]), before);
        assert_ne!(of([owners(1, 0), owners(2, 7)]), before);
        assert_ne!(of([owners(3, 0), owners(2, 0)]), before);
        assert_eq!(of([Owners::default(), owners(2, 0)]), None);
    }

    #[test]
    fn only_jobs_with_a_time_to_live_go_by_themselves() {
        let job = |ttl: Value| {
            Check::of(&object(
                json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {"ttlSecondsAfterFinished": ttl}}),
            ))
        };
        assert!(job(json!(0)).goes && !job(Value::Null).goes);
    }
}
