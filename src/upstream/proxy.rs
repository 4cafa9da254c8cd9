// SPDX-License-Identifier: Apache-2.0
//! The proxy on the way to an API server: chosen by the server's address, as Go programs do. kube compares `NO_PROXY` with
//! the address of the proxy instead, and asks no variable at all for a pod's own account. It still reads the list of every
//! kubeconfig, and refuses what it cannot read: an empty entry, or `*` among others.

use std::net::IpAddr;

use http::{Uri, uri::InvalidUri};
use ipnet::IpNet;

/// Why there is no way through the proxy. No text here repeats the proxy's address as a whole: it may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// Not an address.
    #[error("the proxy of {from} is not a URL")]
    Address {
        /// The variable, or the kubeconfig's key.
        from: &'static str,
        /// What is wrong with it; does not repeat it.
        #[source]
        source: InvalidUri,
    },
    /// A kind of proxy that is not spoken here.
    #[error("the proxy {scheme}://{host} of {from} is of no known kind: http:// and https:// are")]
    Scheme {
        /// The variable, or the kubeconfig's key.
        from: &'static str,
        /// Of the address.
        scheme: String,
        /// Of the address, without user and password.
        host: String,
    },
}

/// The proxy to `server`; `None`: straight there.
///
/// `given` is the kubeconfig's own `proxy-url`, to which no exception applies. Of each variable the upper-case form counts
/// before the lower-case one, and an empty one is none.
pub fn between(
    server: &Uri,
    given: Option<&str>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, ProxyError> {
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        return usable("proxy-url in the kubeconfig", given).map(Some);
    }
    let first = |names: [&'static str; 2]| {
        let mut values = names.into_iter().map(|name| (name, variable(name).unwrap_or_default()));
        values.find(|(_, value)| !value.trim().is_empty())
    };
    let plain = server.scheme_str() == Some("http");
    let names = if plain { ["HTTP_PROXY", "http_proxy"] } else { ["HTTPS_PROXY", "https_proxy"] };
    let Some((from, proxy)) = first(names) else { return Ok(None) };
    let exceptions = first(["NO_PROXY", "no_proxy"]).map(|(_, list)| list).unwrap_or_default();
    let port = server.port_u16().unwrap_or(if plain { 80 } else { 443 });
    if is_exempt(server.host().unwrap_or_default(), port, &exceptions) {
        return Ok(None);
    }
    usable(from, proxy.trim()).map(Some)
}

fn usable(from: &'static str, proxy: &str) -> Result<Uri, ProxyError> {
    let full = if proxy.contains("://") { proxy.to_owned() } else { format!("http://{proxy}") };
    let uri: Uri = full.parse().map_err(|source| ProxyError::Address { from, source })?;
    match uri.scheme_str().unwrap_or_default() {
        "http" | "https" => Ok(uri),
        scheme => {
            let host = uri.host().unwrap_or_default().to_owned();
            Err(ProxyError::Scheme { from, scheme: scheme.to_owned(), host })
        }
    }
}

/// Whether `NO_PROXY` names the server: a host with all below it, `.domain` for those below it only, an address, a network,
/// any of them but a network with a port, or `*`. What runs on this machine is never asked for through a proxy.
fn is_exempt(host: &str, port: u16, exceptions: &str) -> bool {
    let host = unbracketed(host).to_ascii_lowercase();
    let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
    host == "localhost"
        || address.is_some_and(|address| address.is_loopback())
        || exceptions.split(',').any(|entry| names(&entry.trim().to_ascii_lowercase(), &host, address, port))
}

fn names(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| network.contains(&address));
    }
    // An IPv6 address has colons, but no port without brackets.
    let (name, wanted) = match entry.rsplit_once(':') {
        Some((name, wanted)) if !name.contains(':') || name.ends_with(']') => (name, Some(wanted)),
        _ => (entry, None),
    };
    if wanted.is_some_and(|wanted| wanted.parse() != Ok(port)) {
        return false;
    }
    let name = unbracketed(name);
    if let Ok(named) = name.parse::<IpAddr>() {
        return address == Some(named.to_canonical());
    }
    let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
    match name.strip_prefix('.') {
        _ if name.is_empty() || address.is_some() => false,
        Some(_) => host.ends_with(name),
        None => host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
    }
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::chain;

    const PROXY: &str = "http://10.1.2.3:3128";

    fn chosen(server: &str, variables: &[(&str, &str)]) -> Result<Option<String>, ProxyError> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let server: Uri = server.parse().unwrap();
        Ok(between(&server, None, &variable)?.map(|proxy| proxy.to_string()))
    }

    #[test]
    fn exceptions_are_about_the_server() {
        // What the charts and Rancher set; the proxy itself has such an address.
        const COMMON: &str = "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,.svc,.cluster.local";
        for (server, exceptions, exempt) in [
            ("https://fleet.example:6443", COMMON, false),
            ("https://10.43.0.1", COMMON, true),
            ("https://192.168.7.7:6443", COMMON, true),
            ("https://203.0.113.9:6443", COMMON, false),
            ("https://kubernetes.default.svc", COMMON, true),
            ("https://svc", COMMON, false),
            ("https://fleet.example:6443", "", false),
            ("https://fleet.example:6443", "fleet.example", true),
            ("https://FLEET.example:6443", " other , Fleet.Example ", true),
            ("https://fleet.example:6443", "example", true),
            ("https://fleet.example:6443", "leet.example", false),
            ("https://fleet.example:6443", ".example", true),
            ("https://fleet.example:6443", ".fleet.example", false),
            ("https://fleet.example:6443", "*.example", true),
            ("https://fleet.example:6443", "*", true),
            ("https://fleet.example:6443", "a.example,*", true),
            ("https://fleet.example:6443", "fleet.example:6443", true),
            ("https://fleet.example:6443", "fleet.example:443", false),
            ("https://fleet.example", "fleet.example:443", true),
            ("http://fleet.example", "fleet.example:80", true),
            ("https://fleet.example:6443", ",,:6443,.,http://fleet.example", false),
            ("https://10.1.1.1:6443", "10.1.1.1", true),
            ("https://10.1.1.1:6443", "10.1.1.1:6443", true),
            ("https://10.1.1.1:6443", "10.1.1.1:443", false),
            ("https://10.1.1.1:6443", "10.1.0.0/24", false),
            ("https://10.1.1.1:6443", ".1.1", false),
            ("https://[fd00::7]:6443", "fd00::7", true),
            ("https://[fd00::7]:6443", "[fd00::7]:6443", true),
            ("https://[fd00::7]:6443", "[fd00::7]:443", false),
            ("https://[fd00::7]:6443", "fd00::/8", true),
            ("https://[fd00::7]:6443", "fe80::/10,fd00::8", false),
            ("https://localhost:6443", "", true),
            ("https://127.0.0.1:6443", "", true),
            ("https://[::1]:6443", "", true),
        ] {
            let variables = [("HTTPS_PROXY", PROXY), ("HTTP_PROXY", PROXY), ("NO_PROXY", exceptions)];
            let proxy = chosen(server, &variables).unwrap();
            assert_eq!(proxy.is_none(), exempt, "{server} with {exceptions:?}");
        }
    }

    #[test]
    fn of_a_variable_the_upper_case_form_counts_first_and_an_empty_one_is_none() {
        const SERVER: &str = "https://fleet.example";
        for (variables, expected) in [
            (vec![], None),
            (vec![("HTTP_PROXY", "http://a")], None),
            (vec![("https_proxy", "http://a")], Some("http://a/")),
            (vec![("HTTPS_PROXY", "https://a:1"), ("https_proxy", "http://b")], Some("https://a:1/")),
            (vec![("HTTPS_PROXY", ""), ("https_proxy", "http://b")], Some("http://b/")),
            (vec![("HTTPS_PROXY", "proxy:3128")], Some("http://proxy:3128/")),
            (vec![("HTTPS_PROXY", "http://a"), ("no_proxy", "fleet.example")], None),
            (
                vec![("HTTPS_PROXY", "http://a"), ("NO_PROXY", "b"), ("no_proxy", "fleet.example")],
                Some("http://a/"),
            ),
        ] {
            assert_eq!(chosen(SERVER, &variables).unwrap().as_deref(), expected, "{variables:?}");
        }
        assert_eq!(
            chosen("http://up", &[("http_proxy", "http://a"), ("HTTPS_PROXY", "http://b")])
                .unwrap()
                .as_deref(),
            Some("http://a/")
        );
    }

    #[test]
    fn the_proxy_of_a_kubeconfig_has_no_exceptions() {
        let everything = |name: &str| Some("*".to_owned()).filter(|_| name == "NO_PROXY");
        let server: Uri = "https://fleet.example".parse().unwrap();
        let proxy = between(&server, Some(PROXY), &everything).unwrap().unwrap();
        assert_eq!(proxy, PROXY);
        assert_eq!(between(&server, Some(""), &everything).unwrap(), None);
    }

    #[test]
    fn no_error_repeats_a_password() {
        for (proxy, told) in [
            ("socks5://user:secret@proxy.example:1080", "socks5://proxy.example of HTTPS_PROXY"),
            ("http://user:secret@proxy example", "HTTPS_PROXY is not a URL"),
            ("http://user:secret@", "HTTPS_PROXY is not a URL"),
        ] {
            let error = chosen("https://fleet.example", &[("HTTPS_PROXY", proxy)]).unwrap_err();
            let text = chain(&error);
            assert!(text.contains(told), "{text}");
            assert!(!text.contains("secret") && !format!("{error:?}").contains("secret"), "{text}");
        }
    }
}
