// SPDX-License-Identifier: Apache-2.0
//! What sort of bundle the files are, by Fleet's rules.

use sha2::{Digest, Sha256};

use crate::api::{BundleDeploymentOptions, HelmOptions, hex, manifest::Manifest};

use super::files::join;

const CHART: &str = "Chart.yaml";
const KUSTOMIZATION: &str = "kustomization.yaml";

/// What sort of bundle it is. Neither chart nor kustomization: raw manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Style {
    /// The directory of the chart, with its `/`, or empty for the bundle's root.
    pub chart: Option<String>,
    /// The directory of the kustomization, without a `/` at its end; empty for the root.
    pub kustomization: Option<String>,
}

impl Style {
    /// Only `kustomization.yaml` makes a kustomization: with the other spellings Fleet reads the files as raw.
    pub(super) fn of(manifest: &Manifest, options: &BundleDeploymentOptions) -> Self {
        let helm = options.helm.as_ref();
        let chart = helm.map_or("", |helm| if helm.chart.is_empty() { &helm.repo } else { &helm.chart });
        let chart = join(chart, CHART);
        let external = helm.map(external_directory);
        let directory = options.kustomize.as_ref().map_or("", |kustomize| kustomize.dir.as_str());
        let kustomization = join(directory, KUSTOMIZATION);
        let mut style = Self::default();
        for name in manifest.resources.iter().map(|file| file.name.as_str()) {
            if name == chart || external.as_deref().is_some_and(|external| is_external(name, external)) {
                style.chart = name.strip_suffix(CHART).map(str::to_owned);
            } else if name == kustomization {
                let directory = name.strip_suffix(KUSTOMIZATION).unwrap_or_default();
                style.kustomization = Some(directory.trim_end_matches('/').to_owned());
            }
        }
        style
    }

    pub(super) fn is_raw(&self) -> bool {
        self.chart.is_none() && self.kustomization.is_none()
    }
}

/// Where Fleet puts a chart that was fetched, with its `/`: the digest of how it was asked for.
pub fn external_directory(helm: &HelmOptions) -> String {
    let HelmOptions { chart, repo, version, .. } = helm;
    format!(".chart/{}/", hex(&Sha256::digest(format!("{chart}:{repo}:{version}"))))
}

/// The chart file itself, or that of a directory in it.
fn is_external(name: &str, directory: &str) -> bool {
    match name.strip_prefix(directory).map(|rest| rest.split_once('/')) {
        Some(None) => name.strip_prefix(directory) == Some(CHART),
        Some(Some((_, file))) => file == CHART,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::manifest::BundleResource;

    fn style(options: Value, names: &[&str]) -> Style {
        let file = |name: &&str| BundleResource { name: (*name).into(), ..BundleResource::default() };
        let manifest = Manifest { resources: names.iter().map(file).collect() };
        Style::of(&manifest, &serde_json::from_value(options).expect("options of the CRD"))
    }

    #[test]
    fn chart_and_kustomization_are_found_where_the_options_say() {
        let digest = hex(&Sha256::digest("app:https://charts.example.test:1.2.3"));
        let fetched =
            json!({"helm": {"chart": "app", "repo": "https://charts.example.test", "version": "1.2.3"}});
        let (inside, beside) =
            (format!(".chart/{digest}/app/Chart.yaml"), format!(".chart/{digest}/Chart.yaml"));
        let deeper = format!(".chart/{digest}/app/charts/Chart.yaml");
        for (options, names, chart, kustomization) in [
            (json!({}), vec!["a.yaml"], None, None),
            (json!({}), vec!["Chart.yaml"], Some(""), None),
            (json!({}), vec!["app/Chart.yaml"], None, None),
            (
                json!({"helm": {"chart": "./charts/app/"}}),
                vec!["charts/app/Chart.yaml"],
                Some("charts/app/"),
                None,
            ),
            (json!({"helm": {"repo": "/app"}}), vec!["app/Chart.yaml"], Some("app/"), None),
            (json!({"helm": {"chart": "app"}}), vec!["Chart.yaml"], None, None),
            (fetched.clone(), vec![&*inside], Some(&*inside), None),
            (fetched.clone(), vec![&*beside], Some(&*beside), None),
            (fetched, vec![&*deeper], None, None),
            (json!({"helm": {}}), vec![".chart/0123/Chart.yaml"], None, None),
            (json!({}), vec!["kustomization.yaml", "Chart.yaml"], Some(""), Some("")),
            (json!({"kustomize": {"dir": "./a/../b/"}}), vec!["b/kustomization.yaml"], None, Some("b")),
            (json!({"kustomize": {"dir": "b"}}), vec!["kustomization.yaml"], None, None),
            (json!({}), vec!["kustomization.yml", "Kustomization", "b/kustomization.yaml"], None, None),
        ] {
            let chart = chart.map(|chart| chart.trim_end_matches(CHART).to_owned());
            let expected = Style { chart, kustomization: kustomization.map(str::to_owned) };
            assert_eq!(style(options.clone(), &names), expected, "{options} {names:?}");
        }
    }
}
