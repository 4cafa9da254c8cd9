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
    downstream::fence::{ClaimProof, ProofError},
    protocol::{ClaimSlot, Nonce, Time, Uid},
    upstream::snapshot,
};

/// One claim's proof; shared by everything that writes under it.
pub struct Proof {
    ctx: Arc<Context>,
    outbox: super::inbox::Outbox,
    name: Name,
    uid: Uid,
    nonce: Nonce,
    confirmed: Mutex<Time>,
}

impl Proof {
    /// The claim was written, or read live, at `confirmed` by the replica's clock: when that request was *sent*.
    pub fn new(
        ctx: Arc<Context>,
        outbox: super::inbox::Outbox,
        name: Name,
        uid: Uid,
        nonce: Nonce,
        confirmed: Time,
    ) -> Self {
        Self { ctx, outbox, name, uid, nonce, confirmed: Mutex::new(confirmed) }
    }

    async fn read(&self) -> Result<bool, ProofError> {
        let sent = self.ctx.clock.now();
        let Some(object) = self.ctx.upstream.read(&self.name).await? else { return Ok(false) };
        let state = snapshot(&object, false);
        let ours = state.uid == self.uid && matches!(&state.slot, ClaimSlot::Claim(_)) && {
            state.slot.is_held_by(&self.nonce)
        };
        if ours {
            *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner) = sent;
        }
        let message =
            Message::Object { name: self.name.clone(), object: Box::new(object), from: Source::Read };
        self.outbox.send(message).await;
        Ok(ours)
    }
}

impl ClaimProof for Proof {
    fn confirmed_within(&self, age: Duration) -> bool {
        let confirmed = *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        self.ctx.clock.now().saturating_sub(confirmed) <= age
    }

    fn session_healthy(&self) -> bool {
        self.ctx.session.renewed_within(self.ctx.protocol.ttl)
    }

    fn confirm(&self) -> BoxFuture<'_, Result<bool, ProofError>> {
        Box::pin(self.read())
    }
}
