// SPDX-License-Identifier: Apache-2.0
//! The certificates of one control plane.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

/// A certificate authority of our own; it lives in memory, and only its certificate is written to disk.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key, both PEM.
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Authority {
    /// A new authority named after the cluster.
    pub fn new(cluster: &str) -> anyhow::Result<Authority> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("{cluster} authority"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let pem = params.self_signed(&key).context("signing the authority's certificate")?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), pem })
    }

    /// The authority's certificate, PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for the API server, valid for `address` too.
    pub fn server(&self, address: Option<Ipv4Addr>) -> anyhow::Result<Pair> {
        let names = ["127.0.0.1", "10.96.0.1", "localhost", "kubernetes.default.svc"].map(String::from);
        let names = names.into_iter().chain(address.map(|address| address.to_string()));
        let params = CertificateParams::new(names.collect::<Vec<_>>())?;
        self.sign(params, "kube-apiserver", None, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a client: its common name is the user, its organization the group.
    pub fn client(&self, user: &str, group: Option<&str>) -> anyhow::Result<Pair> {
        self.sign(CertificateParams::default(), user, group, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        common_name: &str,
        organization: Option<&str>,
        usage: ExtendedKeyUsagePurpose,
    ) -> anyhow::Result<Pair> {
        let key = KeyPair::generate()?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        if let Some(organization) = organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let certificate = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("signing the certificate of {common_name}"))?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// The key pair that signs service account tokens: (public, private), both PEM.
pub fn token_keys() -> anyhow::Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.public_key_pem(), key.serialize_pem()))
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .with_context(|| format!("protecting {}", path.display()))
}
