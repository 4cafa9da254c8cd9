// SPDX-License-Identifier: Apache-2.0
//! The protocol's vocabulary: small types that keep an epoch from being taken for a nonce.

use std::{cmp::Ordering, fmt};

macro_rules! word {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
    };
}

word! {
    /// A claim's own random word; two claims never share one.
    Nonce
}
word! {
    /// One run of one replica (its boot id). A restart is another session.
    SessionId
}
word! {
    /// A replica's name for people: the pod's.
    Holder
}
word! {
    /// A BundleDeployment's uid.
    Uid
}

/// A resourceVersion. The one returned by a claim's write is the claim's epoch.
///
/// Compared as integers without parsing: by length, then text. An empty one is older than all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch(pub String);

impl Ord for Epoch {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Epoch {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Epoch {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// The stamp on a deployed object: which claim wrote it last. Text: `<uid>/<epoch>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The BundleDeployment.
    pub uid: Uid,
    /// The claim's epoch.
    pub epoch: Epoch,
}

impl Stamp {
    /// Reads a stamp; `None` when the text is not one of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let (uid, epoch) = text.split_once('/')?;
        let digits = !epoch.is_empty() && epoch.bytes().all(|byte| byte.is_ascii_digit());
        (!uid.is_empty() && digits).then(|| Self { uid: uid.into(), epoch: epoch.into() })
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.uid, self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_compare_as_integers() {
        assert!(Epoch::from("9") < Epoch::from("10"));
        assert!(Epoch::from("99") < Epoch::from("100"));
        assert!(Epoch::from("123") < Epoch::from("124"));
        assert!(Epoch::default() < Epoch::from("1"));
    }

    #[test]
    fn a_stamp_reads_back_and_a_strange_one_is_foreign() {
        let stamp = Stamp { uid: "u-1".into(), epoch: "42".into() };
        assert_eq!(Stamp::parse(&stamp.to_string()), Some(stamp));
        for strange in ["", "u", "/4", "u/", "u/x", "u/4x"] {
            assert_eq!(Stamp::parse(strange), None, "{strange}");
        }
    }
}
