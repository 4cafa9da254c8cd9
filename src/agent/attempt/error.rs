// SPDX-License-Identifier: Apache-2.0
//! How a deployment fails, and what that means for the next one.

use crate::{
    agent::plan::PlanError,
    api::{keys, manifest::ContentError},
    downstream::{
        accounts::AccountError,
        apply::ApplyError,
        completion::WaitError,
        copies::{Copied, CopyError},
        fence::Fenced,
        hooks::HookError,
        kinds::KindError,
        namespace::{NamespaceError, TargetError},
        release::{CodecError, ReleaseError},
        removal::RemovalError,
    },
    protocol::Epoch,
    render::{HookEvent, RenderError, values::ValuesError},
    upstream::{self, UpstreamError, sources::SourceError},
};

/// Why a deployment ended without success.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// The content could not be read.
    #[error("cannot load the bundle")]
    Load(#[source] UpstreamError),
    /// The content is broken.
    #[error("cannot use content {id}")]
    Content {
        /// Its name.
        id: String,
        /// Why.
        #[source]
        source: ContentError,
    },
    /// It could not be fetched from where it is.
    #[error("cannot fetch the bundle")]
    Fetch(#[source] SourceError),
    /// The values Secret could not be read.
    #[error("cannot load the bundle's values")]
    LoadValues(#[source] UpstreamError),
    /// There are no values, or not the right ones.
    #[error(transparent)]
    Values(ValuesError),
    /// It may not go to its namespace.
    #[error(transparent)]
    Target(TargetError),
    /// The account it is to be deployed as cannot be used.
    #[error(transparent)]
    Account(AccountError),
    /// What it wants copied is of a kind that is not copied. Fleet's text.
    #[error("unknown resource type for copy to downstream cluster: {0:?}")]
    CopyKind(String),
    /// What it wants copied could not be read. Fleet's text.
    #[error("could not get {kind} {namespace}/{name} from upstream namespace for copying")]
    CopySource {
        /// Its kind.
        kind: Copied,
        /// The cluster namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: UpstreamError,
    },
    /// What it wants copied could not be written.
    #[error(transparent)]
    Copy(CopyError),
    /// The claim did not allow to write its namespace.
    #[error(transparent)]
    Namespace(NamespaceError),
    /// It cannot be rendered.
    #[error(transparent)]
    Render(RenderError),
    /// The cluster's kinds are not known.
    #[error("cannot tell which kinds the cluster serves")]
    Kinds(#[source] KindError),
    /// The release record does not allow it, or could not be written.
    #[error(transparent)]
    Release(ReleaseError),
    /// An object could not be applied.
    #[error(transparent)]
    Apply(ApplyError),
    /// An object of an earlier revision could not be removed.
    #[error(transparent)]
    Prune(RemovalError),
    /// The objects could not be looked at.
    #[error("cannot look at what was deployed")]
    Observe(#[source] PlanError),
    /// The wait for readiness ran out. Helm's text.
    #[error("resource {object} not ready. status: {state}, message: {message}\ncontext deadline exceeded")]
    NotReady {
        /// `Kind/namespace/name`.
        object: String,
        /// Its state.
        state: String,
        /// What it says.
        message: String,
    },
    /// A Job of the bundle failed, or did not end in time.
    #[error(transparent)]
    Jobs(WaitError),
    /// A hook did not run to its end. Helm's words.
    #[error("{}", during(*.event))]
    Hook {
        /// The moment.
        event: HookEvent,
        /// Why.
        #[source]
        source: Box<HookError>,
    },
    /// It failed and was undone, as `helm.atomic` asks. Helm's words.
    #[error("release {release} failed, and has been {what} due to rollback-on-failure being set")]
    Undone {
        /// The release.
        release: String,
        /// `uninstalled` or `rolled back`.
        what: &'static str,
        /// What failed.
        #[source]
        source: Box<AttemptError>,
    },
    /// It failed and could not be undone. Helm's words.
    #[error("an error occurred while {what} the release. original {which} error: {original}")]
    NotUndone {
        /// `uninstalling` or `rolling back`.
        what: &'static str,
        /// `install` or `upgrade`.
        which: &'static str,
        /// What failed first, as text.
        original: String,
        /// Why it could not be undone.
        #[source]
        source: Box<AttemptError>,
    },
    /// It failed, and there is nothing to go back to. Helm's words.
    #[error(
        "unable to find a previously successful release when attempting to rollback. original upgrade error"
    )]
    NoWayBack(#[source] Box<AttemptError>),
    /// Stopped while it waited.
    #[error("the deployment was called off")]
    Fenced(#[source] Fenced),
    /// The management cluster was restored from a backup.
    #[error(
        "the management cluster went back in time (restored from a backup?): {object} was written at its version \
         {stamped}, and it is at {newest} now; check what is deployed, then run: flotilla reset {name}"
    )]
    WentBack {
        /// What carries the stamp.
        object: String,
        /// The stamp.
        stamped: Epoch,
        /// The newest version there is.
        newest: Epoch,
        /// The bundle.
        name: String,
    },
    /// A correction changed nothing: somebody sets it back at once.
    #[error("{object}: {field} was corrected and is not as wanted again: {by} changes it")]
    Reverted {
        /// Which object.
        object: String,
        /// The first field that differs.
        field: String,
        /// Who is on record for it.
        by: String,
    },
    /// All that was deployed would go.
    #[error(
        "the bundle renders no objects any more, and {} deployed: they are kept; if they are to go, delete the \
         BundleDeployment, or annotate it with {annotation}=true",
        .0.map_or_else(|| "some may be".to_owned(), |count| format!("{count} are")),
        annotation = keys::ALLOW_EMPTY_ANNOTATION
    )]
    Emptied(Option<usize>),
    /// A defect of ours.
    #[error("the deployment panicked: {0}")]
    Panicked(String),
}

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The cluster or the surroundings decide: tried again.
    Retryable,
    /// The content alone decides: waits for a change.
    Permanent,
    /// Called off: handed over.
    Stopped,
    /// The claim is not ours: discarded.
    Fenced,
}

/// Texts after which Fleet's agent keeps `Deployed` true and says `Installed` false.
const FLEET_NON_RETRYABLE: [&str; 8] = [
    "timed out waiting for the condition",
    "error validating data",
    "chart requires kubeVersion",
    "annotation validation error",
    "YAML parse error",
    "MalformedYAMLError",
    "unknown field",
    "Forbidden: spec is immutable after creation",
];

impl AttemptError {
    /// What it means for the unit.
    pub fn class(&self) -> Class {
        if let Some(fenced) = self.fenced() {
            return match fenced {
                // What is asked for instead is claimed with the end of this claim.
                Fenced::Cancelled | Fenced::Outdated => Class::Stopped,
                Fenced::Newer { .. } | Fenced::ClaimLost => Class::Fenced,
                Fenced::Proof(_) => Class::Retryable,
            };
        }
        let permanent = match self {
            // What was undone is not tried again: its objects would come and go without end.
            Self::NotReady { .. } | Self::Jobs(_) | Self::Undone { .. } => true,
            Self::NoWayBack(error) => return error.class(),
            Self::NotUndone { .. } => false,
            Self::Hook { source, .. } => source.is_permanent(),
            // A content is named after its hash: a repaired one has another name, but one damaged in storage may
            // be put right in place.
            Self::Content { .. } | Self::Load(_) | Self::Kinds(_) | Self::Observe(_) | Self::Prune(_) => {
                false
            }
            // Somebody is about to write them.
            Self::LoadValues(_) | Self::Values(_) => false,
            Self::Fetch(error) => error.is_permanent(),
            Self::CopyKind(_) => true,
            Self::Target(_)
            | Self::Account(_)
            | Self::CopySource { .. }
            | Self::Copy(_)
            | Self::Namespace(_) => false,
            Self::Render(error) => error.is_permanent(),
            Self::Release(error) => error.is_permanent(),
            Self::Apply(error) => error.is_permanent(),
            // A content may have been lost on its way, and leave may be given.
            Self::Emptied(_) => false,
            Self::Fenced(_) | Self::Reverted { .. } | Self::Panicked(_) | Self::WentBack { .. } => false,
        };
        if permanent { Class::Permanent } else { Class::Retryable }
    }

    /// The fence's refusal, when that is the cause.
    pub fn fenced(&self) -> Option<&Fenced> {
        match self {
            Self::Release(error) => error.fenced(),
            Self::Apply(error) => error.fenced(),
            Self::Prune(error) => error.fenced(),
            Self::Copy(error) => error.fenced(),
            Self::Namespace(error) => error.fenced(),
            Self::Fenced(fenced) => Some(fenced),
            Self::Hook { source, .. } => source.fenced(),
            Self::Jobs(WaitError::Cancelled) => Some(&Fenced::Cancelled),
            Self::NotUndone { source, .. } | Self::NoWayBack(source) => source.fenced(),
            _ => None,
        }
    }

    /// The error with its causes, each once: what people read in conditions and records.
    pub fn text(&self) -> String {
        upstream::chain(self)
    }

    /// Whether Fleet's status says nothing of it: the controller has written one of two objects and not yet the other.
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::LoadValues(_) | Self::Values(ValuesError::Hash { .. }) | Self::CopySource { .. })
    }

    /// Whether the bundle is too large to be stored.
    pub fn is_size(&self) -> bool {
        matches!(self, Self::Release(ReleaseError::Encode { source: CodecError::TooLarge { .. }, .. }))
    }

    /// Whether Fleet's agent would count this text as deployed but not installed.
    pub fn is_fleet_non_retryable(text: &str) -> bool {
        FLEET_NON_RETRYABLE.iter().any(|known| text.contains(known))
    }
}

/// Helm's word for a failed hook.
fn during(event: HookEvent) -> String {
    match event {
        HookEvent::PreInstall | HookEvent::PostInstall => format!("failed {}", event.as_str()),
        _ => format!("{} hooks failed", event.as_str()),
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_fence_decides_what_its_refusal_means() {
        let class = |fenced| AttemptError::Fenced(fenced).class();
        assert_eq!(class(Fenced::Cancelled), Class::Stopped);
        assert_eq!(class(Fenced::Outdated), Class::Stopped);
        assert_eq!(class(Fenced::ClaimLost), Class::Fenced);
        assert_eq!(class(Fenced::Proof("down".into())), Class::Retryable);
    }

    #[test]
    fn what_fleet_settles_by_its_text_is_known_by_it() {
        for text in FLEET_NON_RETRYABLE {
            assert!(AttemptError::is_fleet_non_retryable(&format!("apply: {text}: more")), "{text}");
        }
        assert!(!AttemptError::is_fleet_non_retryable("connection refused"));
    }
}
