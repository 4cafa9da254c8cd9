// SPDX-License-Identifier: Apache-2.0
//! What the fence asks about a claim: was it seen as ours lately, and does this replica's session live?

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;

use super::{
    context::Context,
    inbox::{Message, Name, Source},
};
use crate::{
    downstream::fence::{ClaimNow, ClaimProof, ProofError},
    protocol::{Claim, Nonce, Snapshot, Time, Uid, Unit, Work},
    upstream::snapshot,
};

/// One claim's proof; shared by everything that writes under it.
pub struct Proof {
    ctx: Arc<Context>,
    outbox: super::inbox::Outbox,
    name: Name,
    uid: Uid,
    nonce: Nonce,
    deployment: String,
    confirmed: Mutex<Time>,
}

impl Proof {
    /// The claim was written, or read live, at `confirmed` by the replica's clock: when that request was *sent*.
    pub fn new(
        ctx: Arc<Context>,
        outbox: super::inbox::Outbox,
        name: Name,
        uid: Uid,
        claim: &Claim,
        confirmed: Time,
    ) -> Self {
        let (nonce, deployment) = (claim.nonce.clone(), claim.deployment.clone());
        Self { ctx, outbox, name, uid, nonce, deployment, confirmed: Mutex::new(confirmed) }
    }

    async fn read(&self) -> Result<ClaimNow, ProofError> {
        let sent = self.ctx.clock.now();
        let Some(object) = self.ctx.upstream.read(&self.name).await? else { return Ok(ClaimNow::Lost) };
        let now = claim_now(&snapshot(&object, false), &self.uid, &self.nonce, &self.deployment);
        if now == ClaimNow::Ours {
            *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner) = sent;
        }
        let message =
            Message::Object { name: self.name.clone(), object: Box::new(object), from: Source::Read };
        self.outbox.send(message).await;
        Ok(now)
    }
}

/// What this state says about the claim of that nonce for that deployment id.
fn claim_now(state: &Snapshot, uid: &Uid, nonce: &Nonce, deployment: &str) -> ClaimNow {
    if state.uid != *uid || !state.slot.is_held_by(nonce) {
        return ClaimNow::Lost;
    }
    let claimed = state.slot.claim().is_some_and(|claim| claim.deployment == deployment);
    if claimed && state.deployment == deployment { ClaimNow::Ours } else { ClaimNow::Outdated }
}

/// Whether the claim of this deployment is somebody else's by now, or nobody's. Not when its BundleDeployment is gone: then
/// nobody deploys in its place.
pub(super) fn is_lost(unit: &Unit, nonce: &Nonce) -> bool {
    let runs = matches!(&unit.work, Work::Running { claim, .. } if claim.nonce == *nonce);
    runs && unit.latest.as_ref().is_some_and(|latest| !latest.slot.is_held_by(nonce))
}

impl ClaimProof for Proof {
    fn confirmed_within(&self, age: Duration) -> bool {
        let confirmed = *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        self.ctx.clock.now().saturating_sub(confirmed) <= age
    }

    fn session_healthy(&self) -> bool {
        self.ctx.session.renewed_within(self.ctx.protocol.ttl)
    }

    fn confirm(&self) -> BoxFuture<'_, Result<ClaimNow, ProofError>> {
        Box::pin(self.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ClaimSlot, Gate};

    fn snapshot(slot: ClaimSlot) -> Snapshot {
        Snapshot {
            uid: "u".into(),
            version: "5".into(),
            deployment: "d1".into(),
            gate: Gate::Open,
            outdated: true,
            corrects: false,
            release: String::new(),
            slot,
            rest: 0,
        }
    }

    #[test]
    fn a_deployment_is_late_when_its_claim_is_anothers_or_nobodys_but_not_when_its_unit_is_gone() {
        let held = |nonce: &str| {
            let message =
                format!("v1 holder=a session=s nonce={nonce} attempt=1 lost=0 by= budget=9 deployment=d1");
            ClaimSlot::parse("True", "Claimed", &message)
        };
        let working = |latest: Option<ClaimSlot>| Unit {
            latest: latest.map(snapshot),
            work: Work::Running {
                claim: held("n").claim().unwrap().clone(),
                epoch: "4".into(),
                version: "4".into(),
                waiting: false,
                cancelled: true,
                deadline: Time::ZERO,
                entering: None,
                ended: None,
            },
            ..Unit::default()
        };
        let own = Nonce("n".into());
        for (latest, lost) in
            [(Some(held("n")), false), (Some(held("m")), true), (Some(ClaimSlot::Empty), true), (None, false)]
        {
            assert_eq!(is_lost(&working(latest.clone()), &own), lost, "{latest:?}");
        }
        // Another run's end, and one whose unit was deleted or made anew.
        assert!(!is_lost(&working(Some(ClaimSlot::Empty)), &Nonce("older".into())));
        let deleted =
            Unit { stopping: Some(own.clone()), latest: Some(snapshot(ClaimSlot::Empty)), ..Unit::default() };
        assert!(!is_lost(&deleted, &own));
    }

    #[test]
    fn a_claim_is_ours_only_while_what_it_is_for_is_asked_for() {
        let look = |uid: &str, asked: &str, status: &str, reason: &str, nonce: &str, claimed: &str| {
            let message = format!(
                "v1 holder=a session=s nonce={nonce} attempt=1 lost=0 by= budget=9 deployment={claimed}"
            );
            let slot = ClaimSlot::parse(status, reason, &message);
            let state = Snapshot { uid: uid.into(), deployment: asked.into(), ..snapshot(slot) };
            claim_now(&state, &"u".into(), &Nonce("n".into()), "d1")
        };
        for (uid, asked, status, reason, nonce, claimed, now) in [
            ("u", "d1", "True", "Claimed", "n", "d1", ClaimNow::Ours),
            ("u", "d1", "True", "Waiting", "n", "d1", ClaimNow::Ours),
            ("u", "d2", "True", "Claimed", "n", "d1", ClaimNow::Outdated),
            ("u", "d1", "True", "Claimed", "n", "d2", ClaimNow::Outdated),
            ("v", "d1", "True", "Claimed", "n", "d1", ClaimNow::Lost),
            ("u", "d1", "True", "Claimed", "m", "d1", ClaimNow::Lost),
            ("u", "d1", "False", "Expired", "n", "d1", ClaimNow::Lost),
            ("u", "d1", "True", "Claimed", "", "d1", ClaimNow::Lost),
        ] {
            assert_eq!(
                look(uid, asked, status, reason, nonce, claimed),
                now,
                "{uid} {asked} {reason} {nonce}"
            );
        }
    }
}
