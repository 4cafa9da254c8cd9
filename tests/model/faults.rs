// SPDX-License-Identifier: Apache-2.0
//! What may go wrong, how often, and the bugs that are planted to see whether it is noticed.

/// What may still go wrong or change; each use takes one away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub time: u8,
    pub crashes: u8,
    pub freezes: u8,
    pub lost: u8,
    pub doubled: u8,
    pub failures: u8,
    /// Deployments that fail for good: the content cannot be deployed.
    pub rejections: u8,
    pub waits: u8,
    pub unrelated: u8,
    pub spec: u8,
    pub pauses: u8,
    pub deletions: u8,
    pub recreations: u8,
    /// Live reads whose answer may be late.
    pub slow_reads: u8,
    /// Events that the watch may be behind by, besides the newest.
    pub lag: u8,
    /// Replicas told to stop.
    pub drains: u8,
    /// Claims of another program, which nobody here can read, and their ends.
    pub strange: u8,
    /// Old statuses that somebody puts over a claim.
    pub wipes: u8,
    /// Upstream is saved, and restored from that.
    pub restores: u8,
    /// The downstream API server is away: nobody renews, reads or writes anything there.
    pub outages: u8,
    /// The object is missing: from one replica's list, or from everything, without a deletion.
    pub absences: u8,
}

/// A planted bug.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bug {
    #[default]
    None,
    /// An object whose content is equal keeps its old stamp.
    SkipEqual,
    /// A fresh resourceVersion is trusted, the stamp is not compared.
    IgnoreStamp,
    /// An apply carries the resourceVersion only.
    ApplyWithoutUid,
    /// What cannot be compared is written without confirming the claim.
    CreateUnconfirmed,
    /// A look at the claim does not ask what is to be deployed.
    ConfirmNonceOnly,
    /// Strays are not looked for.
    NoSweep,
    /// A restarted replica goes on with its pod's earlier claim.
    AdoptAfterRestart,
    /// A conflict is taken for the loss of the claim.
    ConflictIsLoss,
    /// The holder's last sign of life is compared with a wall clock that is two steps fast.
    WallClock,
    /// A pending release record of another run is taken for a dead one's.
    StealPending,
    /// A prune does not ask whose object it is.
    PruneForeign,
    /// An object is written whoever's it is.
    ApplyForeign,
    /// A replica on its way out claims.
    ClaimDraining,
    /// A replica that goes says nothing about what it holds.
    ExitHolding,
    /// A claim that cannot be read is none.
    ClaimUnreadable,
    /// Time in which the own Lease could not be renewed counts.
    CountOutage,
    /// What is absent is gone.
    NoGrace,
    /// What is absent together with much else is waited for no longer than anything.
    NoMass,
    /// A record found pending says nothing of its writer.
    ForgetPending,
    /// The reaper removes a claim that cannot be read.
    ReaperClears,
    /// The reaper replaces what it saw whatever stands there now.
    ReaperBlind,
    /// The reaper believes nothing older than what it knows, whoever says so.
    ReaperNeverBack,
    /// A claim that replaces one that took over does not say so.
    ForgetTakeover,
    /// A deployment that fails for good after a takeover leaves no mark.
    ForgetRejected,
    /// Nobody takes over from anybody.
    NeverSteal,
    /// A unit that kills its replicas is tried on and on.
    NoQuarantine,
    /// A unit whose next loss is quarantine is run beside others.
    NeverAlone,
    /// What failed is not tried again.
    EndlessRest,
    /// Everybody claims at once.
    NoPreference,
}
