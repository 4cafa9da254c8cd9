// SPDX-License-Identifier: Apache-2.0
//! One unit in one replica, input by input: each sentence is one behaviour.

use std::time::Duration;

use super::*;

mod alone;
mod claiming;
mod correcting;
mod others;
mod removing;
mod running;

/// One replica's view of one unit, with everything around it in hand.
struct Bench {
    unit: Unit,
    sessions: Sessions,
    config: Config,
    now: Time,
    slots: Slots,
    draining: bool,
    entropy: u64,
    me: SessionId,
}

impl Bench {
    fn new() -> Self {
        let config = Config::default();
        let sessions = Sessions::new(config.ttl);
        let me = "me".into();
        Self {
            unit: Unit::default(),
            sessions,
            config,
            now: secs(100),
            slots: Slots { free: 1, taken: 0, reserved: false },
            draining: false,
            entropy: 0,
            me,
        }
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        self.entropy += 1;
        let env = Env {
            now: self.now,
            healthy: self.now,
            session: &self.me,
            holder: &"pod-me".into(),
            sessions: &self.sessions,
            slots: self.slots,
            draining: self.draining,
            entropy: self.entropy,
            config: &self.config,
        };
        step(&mut self.unit, input, &env)
    }

    fn pass(&mut self, seconds: u64) -> Vec<Effect> {
        self.now += secs(seconds);
        self.step(Input::Tick)
    }

    /// The claim on its way.
    fn claim(&self) -> Claim {
        match &self.unit.work {
            Work::Claiming { claim, .. } | Work::Running { claim, .. } | Work::Finishing { claim, .. } => {
                claim.clone()
            }
            other => panic!("no claim: {other:?}"),
        }
    }

    /// Claims an outdated object at version 10 and wins at 11.
    fn running() -> Self {
        let mut bench = Self::new();
        bench.step(Input::Seen(object("10")));
        let claim = bench.claim();
        bench.step(Input::Written(held("11", &claim)));
        assert!(matches!(bench.unit.work, Work::Running { .. }));
        bench
    }

    fn done(&mut self, outcome: Outcome) -> Vec<Effect> {
        let nonce = self.claim().nonce;
        self.step(Input::Done { nonce, outcome, release: "ns/app:2".into() })
    }

    fn is_idle(&self) -> bool {
        self.unit.work == Work::Idle
    }

    fn lease(&mut self, session: &str, version: &str) {
        let seen = SessionSeen {
            session: session.into(),
            holder: format!("pod-{session}").as_str().into(),
            pod_uid: None,
            version: version.into(),
            free_slots: 1,
        };
        self.sessions.seen(seen, self.now);
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What asks for a deployment.
fn object(version: &str) -> Snapshot {
    Snapshot {
        uid: "u".into(),
        version: version.into(),
        deployment: "d1".into(),
        gate: Gate::Open,
        outdated: true,
        corrects: false,
        release: "ns/app:1".into(),
        slot: ClaimSlot::Empty,
        rest: 0,
    }
}

fn held(version: &str, claim: &Claim) -> Snapshot {
    Snapshot { slot: ClaimSlot::Claim(claim.clone()), ..object(version) }
}

/// What a finish leaves.
fn deployed(version: &str) -> Snapshot {
    Snapshot { outdated: false, release: "ns/app:2".into(), ..object(version) }
}

fn rival(state: ClaimState) -> Claim {
    let text = "v1 holder=pod-b session=b nonce=rival attempt=1 lost=0 by= budget=600 deployment=d1";
    Claim { state, ..Claim::parse("True", "Claimed", text).expect("a claim") }
}

fn writes(effects: &[Effect]) -> Vec<(&Epoch, &Claim)> {
    let mut all = Vec::new();
    for effect in effects {
        if let Effect::WriteClaim { version, claim } = effect {
            all.push((version, claim));
        }
    }
    all
}

fn finish(effects: &[Effect]) -> Option<(&Epoch, &End)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Finish { version, end, .. } => Some((version, end)),
        _ => None,
    })
}

fn rereads(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Reread { .. }))
}

fn starts(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Start { .. }))
}

fn cancels(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Cancel { .. }))
}

fn wake(effects: &[Effect]) -> Option<Time> {
    effects.iter().find_map(|effect| match effect {
        Effect::WakeAt(time) => Some(*time),
        _ => None,
    })
}

fn removes(effects: &[Effect]) -> Option<&str> {
    effects.iter().find_map(|effect| match effect {
        Effect::Remove { uid, .. } => Some(uid.0.as_str()),
        _ => None,
    })
}
