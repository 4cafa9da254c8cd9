// SPDX-License-Identifier: Apache-2.0
//! Cluster status, one part of the agent: the sign of life in `Cluster.status.agent`.
//!
//! A duty of one replica by preference; done twice it is harmless. Whoever gets the duty, because the one before died or
//! because a new replica is preferred, does it at once. That it fails is told, and stops no work on bundles.

use std::{sync::Arc, time::Duration};

use tracing::{debug, warn};

use super::{
    context::Context,
    inbox::{Message, Outbox},
};
use crate::{
    protocol::Time,
    telemetry::metrics::CheckInOutcome,
    upstream::{self, CheckIn, UpstreamError},
};

/// Stands for a unit where the replica with this duty is chosen.
pub(super) const DUTY: &str = "check-in";
/// Name of the readiness part.
pub(super) const PART: &str = "cluster-status";
/// From the start to the first one; Fleet's. By then the replicas know each other.
const FIRST: Duration = Duration::from_secs(15);
/// Wait after a failure; doubles up to `LONGEST`, or the interval if that is shorter.
const AGAIN: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(60);

/// The duty's timetable.
#[derive(Debug, Default)]
pub(super) struct Timetable {
    /// When it is to be done next; `None` while it is not this replica's, and while it is being done.
    pub next: Option<Time>,
    mine: bool,
    running: bool,
    failures: u32,
}

impl Timetable {
    /// Whose duty it is may have changed.
    pub fn assign(&mut self, ctx: &Context, mine: bool) {
        if mine == self.mine {
            return;
        }
        debug!(mine, "duty of the check-in");
        self.mine = mine;
        self.failures = 0;
        if !mine {
            self.next = None;
            ctx.health.set(PART, Ok(()));
        } else if !self.running {
            self.next = Some(ctx.clock.now().max(FIRST.min(ctx.checkin_interval)));
        }
    }

    /// It is due.
    pub fn start(&mut self, ctx: &Arc<Context>, outbox: &Outbox) {
        self.next = None;
        self.running = true;
        let (ctx, outbox) = (ctx.clone(), outbox.clone());
        tokio::spawn(async move {
            let result = check_in(&ctx).await;
            outbox.send(Message::CheckedIn { result }).await;
        });
    }

    /// It was done, or not.
    pub fn ended(&mut self, ctx: &Context, result: Result<(), String>) {
        self.running = false;
        let wait = match result {
            Ok(()) => {
                self.failures = 0;
                ctx.metrics.checked_in(CheckInOutcome::Written);
                ctx.health.set(PART, Ok(()));
                ctx.checkin_interval
            }
            Err(cause) => {
                ctx.metrics.checked_in(CheckInOutcome::Failed);
                let wait = AGAIN.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
                self.failures = self.failures.saturating_add(1);
                warn!(cause, "the Cluster's lastSeen was not written; it is tried again");
                ctx.health.set(PART, Err(cause));
                wait.min(ctx.checkin_interval)
            }
        };
        if self.mine {
            self.next = Some(ctx.clock.now() + wait);
        } else {
            ctx.health.set(PART, Ok(()));
        }
    }
}

async fn check_in(ctx: &Context) -> Result<(), String> {
    let cluster = ctx.cluster.borrow().clone();
    if cluster.name.is_empty() || cluster.registration_namespace.is_empty() {
        debug!("Secret fleet-agent names no Cluster: no check-in");
        return Ok(());
    }
    let sign = CheckIn {
        cluster: cluster.name,
        registration_namespace: cluster.registration_namespace,
        last_seen: ctx.clock.stamp(),
        agent_namespace: ctx.agent_namespace.clone(),
    };
    match ctx.upstream.check_in(&sign).await {
        // Nobody reads it then: an agent without a controller needs no Cluster. One that a controller deletes takes the
        // agent's account with it.
        Err(UpstreamError::Write { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 404) =>
        {
            debug!(cluster = sign.cluster, "there is no such Cluster: no check-in");
            Ok(())
        }
        result => result.map_err(|error| upstream::chain(&error)),
    }
}
