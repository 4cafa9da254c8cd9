// SPDX-License-Identifier: Apache-2.0
//! The other replicas: who lives, and what is this one's duty because of it.

use std::sync::atomic::Ordering;

use tracing::{debug, info};

use super::Replica;
use crate::{
    agent::{checkin, notes},
    downstream::{
        fleet_lease::{self, Lead},
        session::{PodEvent, Session, SessionEvent},
    },
    protocol::{Input, SessionId, SessionSeen, Time, Unit},
    telemetry::events::{EventType, reason},
};

impl Replica {
    pub(super) fn on_session(&mut self, event: SessionEvent) {
        let healthy = self.healthy.at(self.ctx.clock.now());
        match event {
            SessionEvent::Seen(session) => {
                self.sessions.seen(seen(session), healthy);
            }
            SessionEvent::Gone { session } => {
                self.sessions.gone(&session, healthy);
            }
            SessionEvent::Relisted(all) => {
                self.ctx.health.set("sessions", Ok(()));
                self.knows_peers = true;
                self.sessions.relisted(all.into_iter().map(seen).collect(), healthy);
            }
        }
    }

    /// When a session will be quiet that lives now. Silence makes no event, but it moves duties.
    pub(super) fn next_quiet(&self) -> Option<Time> {
        let now = self.ctx.clock.now();
        let healthy = self.healthy.at(now);
        self.sessions.next_quiet(healthy).map(|quiet| now + quiet.saturating_sub(healthy))
    }

    /// Who lives decides who takes over and who monitors; a session that falls silent makes no event, so this is
    /// compared after each.
    pub(super) fn notice_who_lives(&mut self) {
        let healthy = self.healthy.at(self.ctx.clock.now());
        let live: Vec<SessionId> = self.sessions.live(&self.ctx.session_id, healthy).cloned().collect();
        if live == self.live {
            return;
        }
        debug!(live = live.len(), "sessions changed");
        self.ctx.metrics.set_live_sessions(live.len());
        self.ctx.replicas.store(live.len(), Ordering::Relaxed);
        self.live = live;
        self.assign_check_in();
        self.feed_where(|unit| !unit.is_busy(), Input::Tick);
    }

    /// Whether the check-in is this replica's.
    pub(super) fn assign_check_in(&mut self) {
        let healthy = self.healthy.at(self.ctx.clock.now());
        let assigned = self.sessions.is_assigned(&self.ctx.session_id, &checkin::DUTY.into(), healthy);
        self.check_ins.assign(&self.ctx, assigned && !self.rests());
    }

    /// Who works in this cluster: this agent, or Fleet's. What was begun is ended either way.
    pub(super) fn on_lead(&mut self, lead: &Lead) {
        let namespace = &self.ctx.agent_namespace;
        let told = lead.text(namespace);
        if let (Some(text), Lead::Foreign { renewed: true, .. }) = (&told, lead) {
            notes::publish(&self.ctx, None, EventType::Warning, reason::STANDING_BY, text.clone());
        }
        self.ctx.health.set(fleet_lease::NAME, told.map_or(Ok(()), Err));
        let standby = *lead != Lead::Ours;
        if std::mem::replace(&mut self.standby, standby) == standby {
            return;
        }
        self.offer_slots();
        self.assign_check_in();
        if !standby {
            self.feed_where(|unit| !unit.is_busy(), Input::Tick);
        }
    }

    /// Nothing runs in a Pod any more. Most Pods are no replica's.
    pub(super) fn on_pod(&mut self, event: PodEvent) {
        let healthy = self.healthy.at(self.ctx.clock.now());
        if self.sessions.pod_ended(&event.uid, event.at, healthy) {
            info!(pod_uid = event.uid, "a replica's Pod has ended: its claims are free");
        }
    }

    /// Whether the continuous duties for a unit are this replica's.
    pub(in crate::agent) fn is_assigned(&self, unit: &Unit) -> bool {
        let healthy = self.healthy.at(self.ctx.clock.now());
        unit.latest
            .as_ref()
            .is_some_and(|latest| self.sessions.is_assigned(&self.ctx.session_id, &latest.uid, healthy))
    }
}

fn seen(session: Session) -> SessionSeen {
    SessionSeen {
        session: session.session,
        holder: session.holder,
        pod_uid: session.pod_uid,
        version: session.version,
        free_slots: session.free_slots,
    }
}
