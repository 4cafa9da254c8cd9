// SPDX-License-Identifier: Apache-2.0
//! Names in OCI registries, and how a registry asks for credentials.

use std::collections::HashMap;

/// `host[:port]/path[:tag][@digest]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub host: String,
    pub repository: String,
    pub tag: Option<String>,
    pub digest: Option<String>,
}

impl Reference {
    /// Reads one, with or without `oci://`. `None` for what is none, in particular for paths that lead elsewhere.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix("oci://").unwrap_or(text);
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        let (host, path) = rest.split_once('/')?;
        let (repository, tag) = match path.split_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (path, None),
        };
        let repository = repository.trim_matches('/');
        let sound = is_host(host)
            && repository.split('/').all(is_part)
            && tag.is_none_or(is_tag)
            && digest.is_none_or(is_digest);
        sound.then(|| Self {
            host: host.to_owned(),
            repository: repository.to_owned(),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }

    /// Where its API is: Docker's registry has another name there.
    pub fn api_host(&self) -> &str {
        if self.host == "docker.io" { "registry-1.docker.io" } else { &self.host }
    }
}

fn is_host(host: &str) -> bool {
    let sign = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    !host.is_empty() && host.chars().all(sign)
}

fn is_part(part: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let sign = |c: char| inner(c) || matches!(c, '.' | '_' | '-');
    part.starts_with(inner) && part.ends_with(inner) && part.chars().all(sign)
}

fn is_tag(tag: &str) -> bool {
    let sign = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=128).contains(&tag.len()) && !tag.starts_with(['.', '-']) && tag.chars().all(sign)
}

/// Of an algorithm that can be checked.
fn is_digest(digest: &str) -> bool {
    digest
        .strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')))
}

/// What a 401 asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// Name and password.
    Basic,
    /// A token of another service.
    Bearer {
        /// Where it is got.
        realm: String,
        /// Empty: none was named.
        service: String,
        /// Empty: none was named.
        scope: String,
    },
}

impl Challenge {
    /// Reads a `WWW-Authenticate`; `None` for other schemes.
    pub fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut parameters = parameters(rest);
        let mut take = |key: &str| parameters.remove(key).unwrap_or_default();
        Some(Self::Bearer { realm: take("realm"), service: take("service"), scope: take("scope") })
    }
}

/// `key="value", key=value`; commas within quotes belong to the value.
fn parameters(text: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim_matches([',', ' ']).to_ascii_lowercase();
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.insert(key, value.trim().to_owned());
        rest = next;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_cut_into_their_parts() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for (text, host, repository, tag) in [
            ("oci://r.test/charts/app", "r.test", "charts/app", None),
            ("r.test:5000/a/b/", "r.test:5000", "a/b", None),
            ("oci://127.0.0.1:5000/app:1.2.3-rc.1_b1", "127.0.0.1:5000", "app", Some("1.2.3-rc.1_b1")),
            ("docker.io/user/s-0123", "docker.io", "user/s-0123", None),
        ] {
            let got = Reference::parse(text).unwrap();
            assert_eq!((&*got.host, &*got.repository, got.tag.as_deref()), (host, repository, tag), "{text}");
        }
        let pinned = Reference::parse(&format!("oci://r.test/app:1@{digest}")).unwrap();
        assert_eq!((pinned.tag.as_deref(), pinned.digest.as_deref()), (Some("1"), Some(&*digest)));
        assert_eq!(Reference::parse("docker.io/a/b").unwrap().api_host(), "registry-1.docker.io");
    }

    #[test]
    fn what_would_lead_elsewhere_is_no_reference() {
        for text in [
            "",
            "r.test",
            "r.test/",
            "oci://r.test/../x",
            "r.test/a/../../v2/b",
            "r.test/a?x=1",
            "r.test/A",
            "user:pass@r.test/a",
            "r.test/a:.x",
            "r.test/a@md5:00",
            "r.test/a#b",
            "r.test/a//b",
            "r test/a",
        ] {
            assert_eq!(Reference::parse(text), None, "{text}");
        }
    }

    #[test]
    fn challenges_are_read() {
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(
            Challenge::parse(
                r#"Bearer realm="https://auth.test/token",service="r.test",scope="repository:a/b:pull,push""#
            ),
            Some(Challenge::Bearer {
                realm: "https://auth.test/token".into(),
                service: "r.test".into(),
                scope: "repository:a/b:pull,push".into(),
            })
        );
        assert_eq!(
            Challenge::parse("bearer realm=https://a.test, service=s"),
            Some(Challenge::Bearer {
                realm: "https://a.test".into(),
                service: "s".into(),
                scope: String::new()
            })
        );
        assert_eq!(Challenge::parse("Negotiate"), None);
    }
}
