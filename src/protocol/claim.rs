// SPDX-License-Identifier: Apache-2.0
//! The claim: one condition of type `InProgress`, with a message that people can read and replicas parse strictly.
//!
//! Message: `v1 holder=… session=… nonce=… attempt=… lost=… by=… budget=… deployment=… [unswept=true] [retryIn=…]
//! [cause=…]`.
//! Words are separated by one blank; `cause=` is the last one and takes the rest of the line. Words this version
//! does not know are kept. Another version word makes it somebody else's claim.

use sha2::{Digest, Sha256};

use super::{Epoch, Holder, Nonce, SessionId};

/// Version word of the message.
const VERSION: &str = "v1";
/// Sessions named in `by`, at most.
const BY_LIMIT: usize = 3;
/// Characters of a session's id that are enough to tell sessions apart in `by`.
const SHORT: usize = 8;
/// Stands for what a claim that cannot be read did not tell. No session, holder or deployment id is called so.
const UNKNOWN: &str = "unknown";
/// Bytes of a cause that are kept; a status must stay small.
const CAUSE_LIMIT: usize = 1024;

/// What the claim says about its unit; the condition's `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimState {
    /// A replica works on it.
    Claimed,
    /// A replica waits for readiness and holds no slot.
    Waiting,
    /// The last attempt failed; the next one waits for `retryIn` seconds.
    BackingOff,
    /// Given up by its holder or expired; anybody may claim, the counts go on.
    Expired,
    /// Lost too often; not claimed before its time.
    Quarantined,
}

impl ClaimState {
    /// The condition's reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Claimed => "Claimed",
            Self::Waiting => "Waiting",
            Self::BackingOff => "BackingOff",
            Self::Expired => "Expired",
            Self::Quarantined => "Quarantined",
        }
    }

    /// Whether a replica is at work, that is, the condition's status is `True`.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Claimed | Self::Waiting)
    }

    fn parse(status: &str, reason: &str) -> Option<Self> {
        let all = [Self::Claimed, Self::Waiting, Self::BackingOff, Self::Expired, Self::Quarantined];
        let state = all.into_iter().find(|state| state.reason() == reason)?;
        (status == if state.is_open() { "True" } else { "False" }).then_some(state)
    }
}

/// A readable claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// What it says.
    pub state: ClaimState,
    /// The replica, for people.
    pub holder: Holder,
    /// The replica's run.
    pub session: SessionId,
    /// This claim's own word.
    pub nonce: Nonce,
    /// Attempts so far, this one included; starts at 1.
    pub attempt: u32,
    /// Attempts lost with their holder.
    pub lost: u32,
    /// Short ids of the sessions that lost them, newest last.
    pub by: Vec<String>,
    /// Seconds after which an observer may take over, counted from when it first saw this nonce and state.
    pub budget: u64,
    /// The deployment id worked on.
    pub deployment: String,
    /// A former holder may have left objects behind, and no deployment since has looked for them.
    pub unswept: bool,
    /// Seconds until the next attempt, counted likewise.
    pub retry_in: Option<u64>,
    /// Why, for people.
    pub cause: Option<String>,
    /// Words of a newer minor version, kept in order.
    pub unknown: Vec<(String, String)>,
}

impl Claim {
    /// The condition's status.
    pub fn status(&self) -> &'static str {
        if self.state.is_open() { "True" } else { "False" }
    }

    /// The condition's message.
    pub fn message(&self) -> String {
        let mut text = format!(
            "{VERSION} holder={} session={} nonce={} attempt={} lost={} by={} budget={} deployment={}",
            self.holder,
            self.session,
            self.nonce,
            self.attempt,
            self.lost,
            self.by.join(","),
            self.budget,
            self.deployment
        );
        if self.unswept {
            text.push_str(" unswept=true");
        }
        for (key, value) in &self.unknown {
            text.push_str(&format!(" {key}={value}"));
        }
        if let Some(seconds) = self.retry_in {
            text.push_str(&format!(" retryIn={seconds}"));
        }
        if let Some(cause) = &self.cause {
            text.push_str(" cause=");
            text.push_str(&one_line(cause));
        }
        text
    }

    /// Reads a claim; `None` when it is not one of this version, word for word.
    pub fn parse(status: &str, reason: &str, message: &str) -> Option<Self> {
        let state = ClaimState::parse(status, reason)?;
        let mut words = message.strip_prefix(VERSION)?.strip_prefix(' ')?;
        let mut claim = Self {
            state,
            holder: Holder::default(),
            session: SessionId::default(),
            nonce: Nonce::default(),
            attempt: 0,
            lost: 0,
            by: Vec::new(),
            budget: 0,
            deployment: String::new(),
            unswept: false,
            retry_in: None,
            cause: None,
            unknown: Vec::new(),
        };
        let mut seen: Vec<&str> = Vec::new();
        while !words.is_empty() {
            if let Some(cause) = words.strip_prefix("cause=") {
                claim.cause = Some(cause.to_owned());
                break;
            }
            let (word, rest) = words.split_once(' ').unwrap_or((words, ""));
            words = rest;
            let (key, value) = word.split_once('=')?;
            if seen.contains(&key) {
                return None;
            }
            seen.push(key);
            match key {
                "holder" => claim.holder = filled(value)?.into(),
                "session" => claim.session = filled(value)?.into(),
                "nonce" => claim.nonce = filled(value)?.into(),
                "attempt" => claim.attempt = value.parse().ok()?,
                "lost" => claim.lost = value.parse().ok()?,
                "by" => claim.by = value.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect(),
                "budget" => claim.budget = value.parse().ok()?,
                "deployment" => claim.deployment = filled(value)?.to_owned(),
                "unswept" => claim.unswept = value.parse().ok()?,
                "retryIn" => claim.retry_in = Some(value.parse().ok()?),
                _ => claim.unknown.push((filled(key)?.to_owned(), value.to_owned())),
            }
        }
        let required = ["holder", "session", "nonce", "attempt", "lost", "budget", "deployment"];
        required.iter().all(|key| seen.contains(key)).then_some(claim)
    }

    /// What stands in place of a claim that could not be read and was not ended in its time: of nobody known, on an id
    /// unknown, with no attempt on record. `version` is the object's; with the text it makes the nonce.
    pub fn unreadable(text: &str, version: &Epoch) -> Self {
        let mut hash = Sha256::new();
        hash.update(version.0.as_bytes());
        hash.update([0]);
        hash.update(text.as_bytes());
        let word: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self {
            state: ClaimState::Expired,
            holder: UNKNOWN.into(),
            session: UNKNOWN.into(),
            nonce: Nonce(word),
            attempt: 0,
            lost: 0,
            by: Vec::new(),
            budget: 0,
            deployment: UNKNOWN.to_owned(),
            unswept: true,
            retry_in: None,
            cause: Some(one_line(&format!("a claim that cannot be read stood unchanged: {text}"))),
            unknown: Vec::new(),
        }
    }

    /// Whether it waits for another deployment id and not for its time: it keeps a mark, and nothing is to be done.
    pub fn rests(&self) -> bool {
        self.state == ClaimState::BackingOff && self.retry_in.is_none() && self.unswept
    }

    /// Counts one lost attempt against `session`.
    pub fn lose(&mut self, session: &SessionId) {
        let short: String = session.0.chars().take(SHORT).collect();
        self.lost = self.lost.saturating_add(1);
        if !self.by.contains(&short) {
            self.by.push(short);
        }
        if self.by.len() > BY_LIMIT {
            self.by.remove(0);
        }
    }
}

/// What stands in the `InProgress` condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClaimSlot {
    /// No such condition: idle.
    #[default]
    Empty,
    /// A claim of this protocol.
    Claim(Claim),
    /// Somebody else's claim: respected until it has stood unchanged for the claim timeout.
    Unreadable {
        /// Status, reason and message, to notice a change.
        text: String,
    },
}

impl ClaimSlot {
    /// Reads the slot from the condition's three texts.
    pub fn parse(status: &str, reason: &str, message: &str) -> Self {
        match Claim::parse(status, reason, message) {
            Some(claim) => Self::Claim(claim),
            // Fleet's way to say no: an explicit False without a message holds nothing.
            None if status == "False" && message.is_empty() => Self::Empty,
            None => Self::Unreadable { text: format!("{status} {reason} {message}") },
        }
    }

    /// The readable claim.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Self::Claim(claim) => Some(claim),
            Self::Empty | Self::Unreadable { .. } => None,
        }
    }

    /// Whether it is the same claim in the same state; other fields (a cause, say) are no change.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Claim(before), Self::Claim(after)) => {
                before.nonce == after.nonce && before.state == after.state
            }
            (before, after) => before == after,
        }
    }

    /// Whether this very claim stands there, in the state in which it was written.
    pub fn shows(&self, claim: &Claim) -> bool {
        self.claim().is_some_and(|held| held.nonce == claim.nonce && held.state == claim.state)
    }

    /// Whether this nonce holds it open.
    pub fn is_held_by(&self, nonce: &Nonce) -> bool {
        self.claim().is_some_and(|claim| claim.state.is_open() && claim.nonce == *nonce)
    }

    /// Whether who stood here may have left objects behind that only a look for strays finds: it vanished, was told to go,
    /// or says so of one before it. A failure is told by a holder whose requests have ended.
    pub fn is_unswept(&self) -> bool {
        match self {
            Self::Empty => false,
            Self::Claim(claim) => claim.unswept || claim.state != ClaimState::BackingOff,
            Self::Unreadable { .. } => true,
        }
    }

    /// Whether it alone asks for a claim on this deployment id, whatever the status says.
    pub fn asks(&self, deployment: &str) -> bool {
        match self {
            Self::Empty => false,
            Self::Claim(claim) => !claim.rests() || claim.deployment != deployment,
            Self::Unreadable { .. } => true,
        }
    }

    /// Whether a failed attempt waits for its next one.
    pub fn is_backing_off(&self) -> bool {
        self.claim().is_some_and(|claim| claim.state == ClaimState::BackingOff)
    }

    /// Whether anybody may be at work.
    pub fn is_open(&self) -> bool {
        match self {
            Self::Empty => false,
            Self::Claim(claim) => claim.state.is_open(),
            Self::Unreadable { .. } => true,
        }
    }
}

fn filled(value: &str) -> Option<&str> {
    (!value.is_empty()).then_some(value)
}

/// A cause is the rest of *one* line, and bounded.
fn one_line(cause: &str) -> String {
    let mut end = cause.len().min(CAUSE_LIMIT);
    while !cause.is_char_boundary(end) {
        end -= 1;
    }
    cause[..end].split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim {
            state: ClaimState::Claimed,
            holder: "agent-0".into(),
            session: "5f2c9a1b77".into(),
            nonce: "00c0ffee".into(),
            attempt: 2,
            lost: 1,
            by: vec!["aaaaaaaa".into()],
            budget: 600,
            deployment: "s-1:2".into(),
            unswept: false,
            retry_in: None,
            cause: None,
            unknown: Vec::new(),
        }
    }

    #[test]
    fn a_claim_reads_back_word_for_word() {
        let mut claim = claim();
        let back = Claim::parse(claim.status(), claim.state.reason(), &claim.message());
        assert_eq!(back.as_ref(), Some(&claim));
        claim.state = ClaimState::BackingOff;
        claim.retry_in = Some(5);
        claim.cause = Some("cannot apply x: a=b c".into());
        claim.unknown = vec![("colour".into(), "blue".into())];
        claim.unswept = true;
        let back = Claim::parse(claim.status(), claim.state.reason(), &claim.message());
        assert_eq!(back, Some(claim));
    }

    #[test]
    fn a_cause_is_one_bounded_line() {
        let claim = Claim { cause: Some(format!("a\nb\t{}", "é".repeat(2000))), ..claim() };
        let message = claim.message();
        assert!(!message.contains('\n') && message.contains("cause=a b é") && message.len() < 1400);
    }

    #[test]
    fn what_is_not_exactly_ours_is_somebody_elses() {
        let good = claim().message();
        for (status, reason, message) in [
            ("True", "Claimed", good.replace("v1", "v2")),
            ("False", "Claimed", good.clone()),
            ("True", "BackingOff", good.clone()),
            ("True", "Locked", good.clone()),
            ("True", "Claimed", good.replace("attempt=2", "attempt=two")),
            ("True", "Claimed", good.replace(" nonce=00c0ffee", "")),
            ("True", "Claimed", good.replace("nonce=00c0ffee", "nonce=")),
            ("True", "Claimed", good.replace(" lost=1", "  lost=1")),
            ("True", "Claimed", format!("{good} lost=2")),
            ("True", "Claimed", format!("{good} unswept=maybe")),
            ("True", "Claimed", "upgrading".into()),
        ] {
            let slot = ClaimSlot::parse(status, reason, &message);
            assert!(matches!(slot, ClaimSlot::Unreadable { .. }), "{status} {reason} {message}");
            assert!(slot.is_open());
        }
        assert_eq!(ClaimSlot::parse("False", "", ""), ClaimSlot::Empty);
    }

    #[test]
    fn lost_attempts_name_the_last_three_distinct_sessions() {
        let mut claim = claim();
        for session in ["bbbbbbbbb", "bbbbbbbbb", "cccccccc", "dddddddd"] {
            claim.lose(&session.into());
        }
        assert_eq!((claim.lost, claim.by.join(",")), (5, "bbbbbbbb,cccccccc,dddddddd".into()));
    }
}
