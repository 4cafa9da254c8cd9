// SPDX-License-Identifier: Apache-2.0
//! Names Fleet derives: of releases, cluster namespaces, set ids. Pure functions; every rule is Fleet's own
//! (`internal/names`), so that both sides arrive at the same name.

use sha2::{Digest, Sha256};

use super::hex;

/// Longest release name Helm accepts: its record's name must fit a label value.
pub const MAX_RELEASE_NAME: usize = 53;

/// Fleet's constant prefix of every set id.
const SET_ID_PREFIX: &str = "default";

/// Shortens to at most `max` bytes, with a hash at the end where it fits.
pub fn limit_name(name: &str, max: usize) -> String {
    const HASH: usize = 5;
    if name.len() <= max {
        return name.to_owned();
    }
    if max <= HASH + 1 {
        return name[..name.floor_char_boundary(max)].to_owned();
    }
    let kept = &name[..name.floor_char_boundary(max - HASH - 1)];
    let separator = if kept.ends_with('-') { "" } else { "-" };
    format!("{kept}{separator}{}", md5(name, HASH))
}

/// Whether a BundleDeployment of this name carries Fleet's own agent: deploying it would put our competitor in our
/// place, removing it would remove it from a cluster that goes back.
pub fn is_agent_bundle(bd_name: &str) -> bool {
    bd_name.starts_with("fleet-agent")
}

/// Name of the Secret in which Fleet's controller hands out what a registration was granted.
pub fn registration_secret(client_id: &str, client_random: &str) -> String {
    let digest = hex(&Sha256::digest(format!("{client_id}{client_random}")));
    format!("c-{digest}")[..63].to_owned()
}

/// A release name made from a bundle's name: a DNS label of at most 53 characters.
pub fn helm_release_name(name: &str) -> String {
    let flat = name.replace('/', "-");
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let lossless = flat == flat.to_lowercase() && flat.chars().all(allowed);
    let distinct = if lossless { flat } else { format!("{flat}-{}", md5(&flat, 8)) };
    let mut clean = String::with_capacity(distinct.len());
    for c in distinct.to_lowercase().chars() {
        let c = if allowed(c) { c } else { '-' };
        if c != '-' || !clean.ends_with('-') {
            clean.push(c);
        }
    }
    let clean = clean.trim_matches('-');
    // Lower-cased, only allowed characters, no dash at either end: valid unless nothing is left.
    if clean.is_empty() { md5(name, 24) } else { limit_name(clean, MAX_RELEASE_NAME) }
}

/// Parts joined with `-`, cut to 63 characters with a hash at the end when longer.
pub fn safe_concat_name(parts: &[&str]) -> String {
    const CUT: usize = 57;
    let full = parts.join("-");
    if full.len() < 64 {
        return full;
    }
    let digest = hex(&Sha256::digest(full.as_bytes()));
    let last = full.as_bytes()[CUT - 1];
    let (cut, hash) =
        if last.is_ascii_lowercase() || last.is_ascii_digit() { (CUT, 5) } else { (CUT - 1, 6) };
    format!("{}-{}", &full[..full.floor_char_boundary(cut)], &digest[..hash])
}

/// First 12 hex digits of SHA-256 over the first 100 bytes.
pub fn key_hash(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut hash = hex(&Sha256::digest(&bytes[..bytes.len().min(100)]));
    hash.truncate(12);
    hash
}

/// The namespace Fleet's controller gives a Cluster. Only a proposal: `Cluster.status.namespace` decides.
pub fn cluster_namespace(namespace: &str, name: &str) -> String {
    safe_concat_name(&["cluster", namespace, name, &key_hash(&format!("{namespace}::{name}"))])
}

/// The text that identifies all objects of one BundleDeployment; `scope` is the agent's scope or empty.
pub fn set_id(bd_name: &str, scope: &str) -> String {
    // Fleet's import controller applied the agent's own objects under this id before any bundle existed.
    let mut parts =
        if is_agent_bundle(bd_name) { vec!["fleet-agent-bootstrap"] } else { vec![SET_ID_PREFIX, bd_name] };
    if !scope.is_empty() {
        parts.push(scope);
    }
    safe_concat_name(&parts)
}

/// Value of the hash label: SHA-1 hex of the set id.
pub fn object_hash(set_id: &str) -> String {
    hex(&sha1::Sha1::digest(set_id.as_bytes()))
}

/// First `length` hex digits of MD5 (names, not security: Fleet's choice).
fn md5(text: &str, length: usize) -> String {
    let mut hash = hex(&md5::Md5::digest(text.as_bytes()));
    hash.truncate(length);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_names_are_fleets() {
        for (name, max, expected) in [
            ("1234567", 5, "12345"),
            ("1234567", 6, "123456"),
            ("1234567", 7, "1234567"),
            ("12345678", 8, "12345678"),
            ("12345678", 7, "1-25d55"),
            ("123456789", 8, "12-25f9e"),
            ("1-3456789", 8, "1-9b657"),
        ] {
            assert_eq!(limit_name(name, max), expected, "{name} to {max}");
        }
    }

    #[test]
    fn a_registrations_secret_is_named_after_both_words() {
        let name = registration_secret("id", "random");
        assert_eq!((name.len(), &name[..2]), (63, "c-"));
        assert!(hex(&Sha256::digest(b"idrandom")).starts_with(&name[2..]));
    }

    #[test]
    fn release_names_are_fleets() {
        let digits = "1234567890".repeat(6);
        let (str53, str63) = (&digits[..53], format!("{digits}123"));
        for (name, expected) in [
            (str53.to_owned(), str53),
            (format!("{str53}a"), "12345678901234567890123456789012345678901234567-fdba4"),
            (format!("{str63}a"), "12345678901234567890123456789012345678901234567-eb12d"),
            (format!("{}-1234567", &str53[..46]), "1234567890123456789012345678901234567890123456-d0bce"),
            ("long-name-test-shortpath-with@char".into(), "long-name-test-shortpath-with-char-031bab5e"),
            ("long-name-test-shortpath-with+char".into(), "long-name-test-shortpath-with-char-21c88393"),
            ("long-name-test-0.App_ ".into(), "long-name-test-0-app-5bf6b3fb"),
            ("long-name-test--App_-_12.factor".into(), "long-name-test-app-12-factor-0efbac37"),
            ("bundle.name.example.com".into(), "bundle-name-example-com-645ef821"),
            ("a/b".into(), "a-b"),
        ] {
            assert_eq!(helm_release_name(&name), expected, "{name}");
        }
    }

    /// Shortened twice, in two places, a name must be the same: else what one of them deployed the other would remove.
    #[test]
    fn pc_036_shortening_is_idempotent_at_every_cut() {
        let beacon = "harbour-north-quay-stack-telemetry-relay-colle-tor-edge-gate";
        let letters = "abcdefghijklmnopqrstuvwxyz0123456789".repeat(2);
        let mut names = vec![beacon.to_owned()];
        for length in 40..=70 {
            for at in 1..length - 1 {
                for odd in ["-", "--", ".", "_", "A"] {
                    names.push(format!("{}{odd}{}", &letters[..at], &letters[at..length]));
                }
            }
        }
        for name in &names {
            let release = helm_release_name(name);
            assert_eq!(helm_release_name(&release), release, "{name}");
            assert!(release.len() <= 53 && !release.contains("--"), "{name}: {release}");
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(
                release.chars().all(legal) && !release.starts_with('-') && !release.ends_with('-'),
                "{release}"
            );
        }
    }

    #[test]
    fn a_name_of_which_nothing_is_left_becomes_a_hash() {
        for name in ["", "-", "--"] {
            assert_eq!(helm_release_name(name), md5(name, 24), "{name:?}");
        }
    }

    #[test]
    fn concatenated_names_are_fleets() {
        let (long, half) = ("a".repeat(64), "a".repeat(32));
        assert_eq!(safe_concat_name(&[&long]), format!("{}-ffe05", "a".repeat(57)));
        assert_eq!(safe_concat_name(&[&half, &half]), format!("{half}-{}-da5ed", "a".repeat(24)));
        assert_eq!(safe_concat_name(&["a", "b"]), "a-b");
        let dashed = format!("{}-{}", "a".repeat(56), "b".repeat(20));
        let cut = safe_concat_name(&[&dashed]);
        assert!(cut.starts_with(&format!("{}-", "a".repeat(56))) && cut.len() == 63, "{cut}");
    }

    #[test]
    fn cluster_namespaces_are_fleets() {
        assert_eq!(cluster_namespace("fleet-local", "local"), "cluster-fleet-local-local-1a3d67d0a899");
        assert_eq!(cluster_namespace("fleet-default", "foo"), "cluster-fleet-default-foo-323c0d367acd");
        assert!(cluster_namespace("fleet-local", "cluster-294db1acfa77").ends_with("-d9ccf852678f"));
    }

    #[test]
    fn set_ids_carry_prefix_and_scope() {
        assert_eq!(set_id("web", ""), "default-web");
        assert_eq!(set_id("web", "blue"), "default-web-blue");
        assert_eq!(set_id("fleet-agent-c1", ""), "fleet-agent-bootstrap");
        assert_eq!(set_id("fleet-agent-c1", "blue"), "fleet-agent-bootstrap-blue");
        assert_eq!(object_hash("default-remove-metadata"), "0f3e1d9d146fa8b290c0de403881184751430e59");
    }

    #[test]
    fn names_in_other_scripts_are_cut_between_characters() {
        assert!(limit_name(&"ü".repeat(40), 20).len() <= 20);
        assert!(safe_concat_name(&[&"ü".repeat(40)]).len() <= 63);
        assert_eq!(key_hash(&"ü".repeat(99)).len(), 12);
    }
}
