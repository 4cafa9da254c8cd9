// SPDX-License-Identifier: Apache-2.0
//! Patience at the start: an API server that is down or slow is waited for; what only a person can mend ends the
//! process at once, so that nobody looks at a replica that idles.

use std::time::Duration;

use tracing::warn;

use super::surroundings;
use crate::{
    downstream::session::SessionError, registration::RegistrationError, telemetry::probes::Health, upstream,
};

/// First wait; doubles up to `LONGEST`.
const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(10);
/// Name of the readiness part that says what is waited for.
pub const PART: &str = "start";

/// An error that may pass by itself.
pub trait Passing: std::error::Error + 'static {
    /// Whether trying again can help without anybody doing anything.
    fn may_pass(&self) -> bool;
}

impl Passing for RegistrationError {
    fn may_pass(&self) -> bool {
        match self {
            Self::Read { source, .. } => outage(source),
            Self::Missing { .. }
            | Self::Key { .. }
            | Self::Kubeconfig { .. }
            | Self::Config { .. }
            | Self::Refused { .. }
            | Self::Managed(_) => false,
        }
    }
}

impl Passing for SessionError {
    fn may_pass(&self) -> bool {
        self.is_outage()
    }
}

/// No answer, an overloaded server or a broken one; a refusal is none.
fn outage(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}

/// Tries until it works or fails for good.
pub async fn until_it_passes<T, E: Passing>(
    health: &Health,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut wait = FIRST;
    loop {
        match attempt().await {
            Err(error) if error.may_pass() => {
                let cause = upstream::chain(&error);
                warn!(cause, "cannot start yet; it is tried again");
                health.set(PART, Err(cause));
                tokio::time::sleep(surroundings::jittered(wait)).await;
                wait = (wait * 2).min(LONGEST);
            }
            done => {
                health.set(PART, Ok(()));
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16) -> RegistrationError {
        let status = kube::core::Status { code, ..Default::default() };
        let source = Box::new(kube::Error::Api(Box::new(status)));
        RegistrationError::Read { kind: "Secret", namespace: "ns".into(), source }
    }

    #[test]
    fn an_outage_is_waited_for_and_a_refusal_is_not() {
        assert!(answered(503).may_pass() && answered(429).may_pass());
        assert!(!answered(403).may_pass() && !answered(401).may_pass());
        assert!(!RegistrationError::Missing { kind: "Secret", namespace: "ns".into() }.may_pass());
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_tried_until_it_works() {
        let mut tries = 0;
        let health = Health::new(&[]);
        let tried = until_it_passes(&health, async || {
            tries += 1;
            if tries < 4 { Err(answered(503)) } else { Ok(tries) }
        });
        assert_eq!(tried.await.unwrap(), 4);
        let failed = until_it_passes(&health, async || Err::<(), _>(answered(403))).await;
        assert!(failed.is_err());
    }
}
