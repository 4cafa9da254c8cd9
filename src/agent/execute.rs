// SPDX-License-Identifier: Apache-2.0
//! From effects to requests: each is a task that answers with a message.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, warn};

use super::{
    attempt::{self, Ended, Job},
    context::Context,
    evidence,
    inbox::{Message, Name, Outbox, Source},
    notes, removal,
    replica::Replica,
};
use crate::{
    api::{BundleDeployment, BundleDeploymentStatus},
    downstream::session,
    protocol::{Claim, ClaimState, Effect, End, Epoch, Input, Nonce, Note, SessionId},
    telemetry::metrics::UpstreamWrite,
    upstream::{self, Answer, fields},
};

/// Executes one effect of the protocol.
pub(super) fn execute(replica: &mut Replica, name: &Name, effect: Effect) {
    match effect {
        Effect::WriteClaim { version, claim } => write_claim(replica, name, version, claim),
        Effect::Reread { after } => reread(replica, name, after),
        Effect::Verify { session, known } => verify(replica, name, session, known),
        Effect::Start { claim, epoch } => start(replica, name, claim, epoch),
        Effect::Cancel { nonce } => {
            if let Some(entry) = replica.units.get(name)
                && let Some((running, token)) = &entry.running
                && *running == nonce
            {
                token.cancel();
            }
        }
        Effect::Finish { version, nonce, end } => finish(replica, name, version, &nonce, &end),
        Effect::WakeAt(time) => replica.wake_at(name, time),
        Effect::WantSlot => replica.want_slot(name),
        Effect::Remove { uid, dead_guard } => {
            let object = replica.units.get(name).and_then(|entry| entry.object.clone()).unwrap_or_default();
            let (ctx, outbox, name) = (replica.ctx.clone(), replica.outbox.clone(), name.clone());
            tokio::spawn(async move {
                let removal = removal::remove(&ctx, &object, &uid, dead_guard).await;
                outbox.input(&name, Input::Removed(removal)).await;
            });
        }
        Effect::Relist => replica.relist(),
        Effect::Forget => replica.forget(name),
        // Told once for all of them.
        Effect::Note(Note::AbsenceHeld) if replica.ctx.holds.has(name) => {}
        Effect::Note(note) => {
            let object = replica.units.get(name).and_then(|entry| entry.object.as_deref());
            notes::tell(&replica.ctx, name, object, note);
        }
    }
}

/// Base and patch of a status write: the claim goes into the conditions of the object at exactly that version.
struct StatusWrite {
    object: Arc<BundleDeployment>,
    version: Epoch,
    after: BundleDeploymentStatus,
    kind: UpstreamWrite,
}

impl StatusWrite {
    fn new(object: Arc<BundleDeployment>, version: Epoch, kind: UpstreamWrite) -> Self {
        let after = object.status.clone().unwrap_or_default();
        Self { object, version, after, kind }
    }

    fn patch(&self) -> Option<Value> {
        let empty = BundleDeploymentStatus::default();
        let before = self.object.status.as_ref().unwrap_or(&empty);
        fields::patch(&self.object, &self.version.0, before, &self.after)
    }

    /// Sends it, cutting once what is too large: a finish never fails by size.
    async fn send(mut self, ctx: &Context, name: &Name) -> Answer {
        if self.object.metadata.resource_version.as_deref() != Some(self.version.0.as_str()) {
            // Conditions made from another version would undo what others wrote in between.
            return Answer::Conflict;
        }
        for cut in [false, true] {
            if cut {
                warn!(unit = %name, "the status is too large for the API server and is cut");
                fields::cut(&mut self.after);
            }
            let Some(patch) = self.patch() else {
                // Only a repeated finish can be without a difference: the object already is as wanted.
                return Answer::Written(Box::new(self.object.as_ref().clone()));
            };
            ctx.metrics.upstream_write(self.kind);
            match ctx.upstream.patch_status(name, &patch).await {
                Answer::TooLarge if !cut => {}
                answer => return answer,
            }
        }
        Answer::TooLarge
    }
}

/// Every write has an answer: without an object to base it on, it is that of one that was changed meanwhile.
fn baseless(replica: &Replica, name: &Name) {
    let (outbox, name) = (replica.outbox.clone(), name.clone());
    tokio::spawn(async move { outbox.input(&name, Input::Conflict).await });
}

fn spawn_write(replica: &Replica, name: &Name, write: StatusWrite) {
    let (ctx, outbox, name) = (replica.ctx.clone(), replica.outbox.clone(), name.clone());
    tokio::spawn(async move {
        let answer = write.send(&ctx, &name).await;
        answered(&outbox, &name, answer).await;
    });
}

async fn answered(outbox: &Outbox, name: &Name, answer: Answer) {
    let input = match answer {
        Answer::Written(object) => {
            let from = Source::Written;
            return outbox.send(Message::Object { name: name.clone(), object, from }).await;
        }
        Answer::Conflict => Input::Conflict,
        Answer::Absent => Input::ReadAbsent,
        Answer::Unclear(cause) => {
            warn!(unit = %name, cause, "no clear answer to a status write; it is read back");
            Input::Unclear
        }
        Answer::Denied(cause) => {
            warn!(unit = %name, cause, "a status write was refused");
            Input::Denied
        }
        Answer::TooLarge => Input::Denied,
    };
    outbox.input(name, input).await;
}

fn write_claim(replica: &mut Replica, name: &Name, version: Epoch, claim: Claim) {
    let Some(entry) = replica.units.get_mut(name) else { return };
    let Some(object) = entry.object.clone() else { return baseless(replica, name) };
    let kind = match claim.state {
        ClaimState::Waiting => UpstreamWrite::Wait,
        _ => UpstreamWrite::Claim,
    };
    entry.asked = replica.ctx.clock.now();
    let (ctx, outbox, name) = (replica.ctx.clone(), replica.outbox.clone(), name.clone());
    tokio::spawn(async move {
        let claim = match claim.state {
            ClaimState::Quarantined => evidence::added(&ctx, &name, &object, claim).await,
            _ => claim,
        };
        let mut write = StatusWrite::new(object, version, kind);
        fields::set_claim(&mut write.after.conditions, Some(&claim), &ctx.clock.stamp());
        let answer = write.send(&ctx, &name).await;
        answered(&outbox, &name, answer).await;
    });
}

fn finish(replica: &mut Replica, name: &Name, version: Epoch, nonce: &Nonce, end: &End) {
    let Some(entry) = replica.units.get_mut(name) else { return };
    let Some(object) = entry.object.clone() else { return baseless(replica, name) };
    entry.asked = replica.ctx.clock.now();
    let now = replica.ctx.clock.stamp();
    let kind = match end {
        End::Deployed | End::Permanent(_) | End::BackOff(_) => UpstreamWrite::Finish,
        End::Release(_) | End::Replace(_) => UpstreamWrite::Release,
    };
    let mut write = StatusWrite::new(object, version, kind);
    let ended = entry.ended.as_ref().filter(|ended| ended.nonce == *nonce);
    let claim = match end {
        End::Deployed | End::Permanent(_) | End::BackOff(_) => {
            if let Some(ended) = ended {
                write.after = ended.fields.merged_into(&write.after, &now);
            }
            match end {
                End::BackOff(claim) => Some(claim),
                End::Permanent(claim) => claim.as_ref(),
                _ => None,
            }
        }
        End::Release(claim) => claim.as_ref(),
        End::Replace(claim) => Some(claim),
    };
    fields::set_claim(&mut write.after.conditions, claim, &now);
    spawn_write(replica, name, write);
}

fn reread(replica: &Replica, name: &Name, after: Duration) {
    let (ctx, outbox, turn) = (replica.ctx.clone(), replica.outbox.clone(), replica.read_turn(name));
    let name = name.clone();
    tokio::spawn(async move {
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        let _turn = turn.lock().await;
        answer_read(&ctx, &outbox, &name).await;
    });
}

async fn answer_read(ctx: &Context, outbox: &Outbox, name: &Name) {
    match ctx.upstream.read(name).await {
        Ok(Some(object)) => {
            let message =
                Message::Object { name: name.clone(), object: Box::new(object), from: Source::Read };
            outbox.send(message).await;
        }
        Ok(None) => outbox.input(name, Input::ReadAbsent).await,
        Err(error) => {
            debug!(unit = %name, cause = upstream::chain(&error), "a live read failed");
            outbox.input(name, Input::ReadFailed).await;
        }
    }
}

/// Looks at a quiet holder's Lease, live, and then at the object, so that both are fresh when it is judged.
fn verify(replica: &Replica, name: &Name, session: SessionId, known: Epoch) {
    let (ctx, outbox, turn) = (replica.ctx.clone(), replica.outbox.clone(), replica.read_turn(name));
    let name = name.clone();
    tokio::spawn(async move {
        let _turn = turn.lock().await;
        let client = ctx.downstream.server.client().clone();
        let lease = session::read_session(client, &ctx.agent_namespace, &session).await;
        let quiet = match lease {
            Ok(lease) => lease.is_none_or(|lease| lease.version == known),
            Err(error) => {
                debug!(unit = %name, session = %session, cause = upstream::chain(&error), "cannot look at a holder");
                return outbox.input(&name, Input::ReadFailed).await;
            }
        };
        if quiet {
            answer_read(&ctx, &outbox, &name).await;
        }
        outbox.input(&name, Input::Verified { session, quiet }).await;
    });
}

fn start(replica: &mut Replica, name: &Name, claim: Claim, epoch: Epoch) {
    let Some(entry) = replica.units.get_mut(name) else { return };
    let Some(object) = entry.object.clone() else { return };
    let cancelled = CancellationToken::new();
    entry.running = Some((claim.nonce.clone(), cancelled.clone()));
    let taken_over = claim.unswept || std::mem::take(&mut entry.sweep);
    entry.sweeping = taken_over;
    entry.ended = None;
    let span = tracing::info_span!(
        "attempt",
        unit = %name,
        deployment_id = %claim.deployment,
        epoch = %epoch,
        attempt = claim.attempt,
    );
    // Asked for by nobody, and not outdated: what stands differs from what was deployed. A claim that was lost or handed
    // over half-way is deployed over whole.
    let correction = entry.unit.latest.as_ref().is_some_and(|latest| latest.corrects && !latest.outdated)
        && !entry.unit.redeploy
        && !taken_over;
    let job = Job {
        correction,
        plan: entry.monitored.plan.clone(),
        ctx: replica.ctx.clone(),
        outbox: replica.outbox.clone(),
        name: name.clone(),
        object,
        claim,
        epoch,
        taken_over,
        earlier: entry.earlier.clone(),
        confirmed: entry.asked,
        cancelled,
    };
    let (outbox, name, nonce) = (job.outbox.clone(), name.clone(), job.claim.nonce.clone());
    tokio::spawn(
        async move {
            // A task of its own: a panic in one deployment is that deployment's failure, not the replica's.
            let ended = match tokio::spawn(attempt::attempt(job).in_current_span()).await {
                Ok(ended) => ended,
                Err(panic) => Ended::panicked(nonce, &panic),
            };
            outbox.send(Message::Ended { name, ended: Box::new(ended) }).await;
        }
        .instrument(span),
    );
}
