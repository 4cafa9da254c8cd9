// SPDX-License-Identifier: Apache-2.0
//! Where `flotilla apply` gets bundles from: a folder, a file or standard input.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use kube::api::ObjectMeta;
use serde_json::{Map, Value};

use super::{
    error::CliError,
    files,
    fleet_yaml::{self, FleetYaml},
    yaml,
};
use crate::api::{Bundle, BundleSpec, HelmOptions, manifest::BundleResource, names};

/// Bundles to apply, and what to tell about them.
#[derive(Debug, Default)]
pub struct Source {
    /// At least one.
    pub bundles: Vec<Bundle>,
    /// Sentences for standard error.
    pub warnings: Vec<String>,
}

/// Reads what the argument names; `-` is standard input.
pub fn read(argument: &str) -> Result<Source, CliError> {
    if argument == "-" {
        let mut text = String::new();
        io::stdin()
            .read_to_string(&mut text)
            .map_err(|source| CliError::Read { path: "standard input".to_owned(), source })?;
        return documents(&text, "standard input");
    }
    let path = Path::new(argument);
    let reading = |source| CliError::Read { path: argument.to_owned(), source };
    if fs::metadata(path).map_err(reading)?.is_dir() {
        folder(path)
    } else {
        documents(&fs::read_to_string(path).map_err(reading)?, argument)
    }
}

/// Bundles from YAML or JSON documents. `what` names the text in errors.
pub fn documents(text: &str, what: &str) -> Result<Source, CliError> {
    let mut source = Source::default();
    for (at, document) in yaml::documents(text, what)?.into_iter().enumerate() {
        let what = format!("{what}, document {}", at + 1);
        let (version, kind) = (document["apiVersion"].as_str(), document["kind"].as_str());
        if (version, kind) != (Some("fleet.cattle.io/v1alpha1"), Some("Bundle")) {
            let found = format!("{} {}", version.unwrap_or("no apiVersion,"), kind.unwrap_or("no kind"));
            return Err(CliError::Refused(format!(
                "{what} is not a Bundle of fleet.cattle.io/v1alpha1 but {found}"
            )));
        }
        let bundle: Bundle = serde_json::from_value(document)
            .map_err(|source| CliError::Form { what: what.clone(), source })?;
        let spec = &bundle.spec;
        for (key, given) in [
            ("targets", !spec.targets.is_empty()),
            ("targetRestrictions", !spec.target_restrictions.is_empty()),
            ("rolloutStrategy", spec.rollout_strategy.is_some()),
        ] {
            if given {
                source.warnings.push(format!("{what}: {key} needs a Fleet controller and is ignored"));
            }
        }
        source.bundles.push(bundle);
    }
    if source.bundles.is_empty() {
        return Err(CliError::Refused(format!("{what} has no documents")));
    }
    Ok(source)
}

/// One bundle from a folder and its `fleet.yaml`, as Fleet's bundle reader would make it.
pub fn folder(path: &Path) -> Result<Source, CliError> {
    let reading = |source| CliError::Read { path: path.display().to_string(), source };
    let (file, options) = options(path)?;
    let FleetYaml { name, labels, mut spec, ignored } = options;
    let mut warnings: Vec<_> =
        ignored.iter().map(|key| format!("{file}: {key} needs a Fleet controller and is ignored")).collect();
    // Fleet leaves this file out by name; `fleet.yml` goes along. An id must not depend on who made it.
    let mut configuration = vec!["fleet.yaml".to_owned()];
    if let Some(helm) = &mut spec.options.helm {
        for file in &helm.values_files {
            configuration.push(file.clone());
            configuration.extend(file.rsplit_once('/').map(|(_, base)| base.to_owned()));
        }
        if !helm.template_values.is_empty() {
            warnings.push(format!("{file}: helm.templateValues is evaluated by a Fleet controller only"));
        }
        chart(path, helm)?;
    }
    let resources: Vec<_> = files::read(path, &configuration)?
        .into_iter()
        .map(|(name, bytes)| BundleResource::from_bytes(name, bytes))
        .collect();
    if resources.is_empty() {
        return Err(CliError::Refused(format!("{} has no files to deploy", path.display())));
    }
    let name = if name.is_empty() { folder_name(&path.canonicalize().map_err(reading)?)? } else { name };
    let metadata = ObjectMeta {
        name: Some(name),
        labels: Some(labels).filter(|labels| !labels.is_empty()),
        ..ObjectMeta::default()
    };
    let spec = BundleSpec { resources, ..spec };
    Ok(Source { bundles: vec![Bundle { metadata, spec, status: None }], warnings })
}

fn options(folder: &Path) -> Result<(String, FleetYaml), CliError> {
    for name in ["fleet.yaml", "fleet.yml"] {
        let path = folder.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let what = path.display().to_string();
                let options = fleet_yaml::parse(&text, &what)?;
                return Ok((what, options));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(CliError::Read { path: path.display().to_string(), source }),
        }
    }
    Ok((String::new(), FleetYaml::default()))
}

fn folder_name(path: &Path) -> Result<String, CliError> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.map(names::helm_release_name)
        .ok_or_else(|| CliError::Refused(format!("{} gives no name; use --name", path.display())))
}

/// A chart must be in the folder, since nothing is downloaded here. Values files count for charts only, as in Fleet,
/// and win over inline values.
fn chart(folder: &Path, helm: &mut HelmOptions) -> Result<(), CliError> {
    if helm.chart.is_empty() && helm.repo.is_empty() {
        return Ok(());
    }
    if !helm.repo.is_empty() || !folder.join(&helm.chart).exists() {
        let chart = if helm.chart.is_empty() { &helm.repo } else { &helm.chart };
        return Err(CliError::Refused(format!(
            "chart {chart} is not in the folder, and charts are not downloaded"
        )));
    }
    let mut values = helm.values.take().unwrap_or_default();
    for file in &helm.values_files {
        let path = folder.join(file);
        let what = path.display().to_string();
        let text =
            fs::read_to_string(&path).map_err(|source| CliError::Read { path: what.clone(), source })?;
        match yaml::document(&text, &what)? {
            Value::Object(overlay) => merge(&mut values, overlay),
            _ => return Err(CliError::Refused(format!("{what} is not a map"))),
        }
    }
    helm.values = Some(values).filter(|values| !values.is_empty());
    Ok(())
}

/// Maps are merged, anything else of the overlay replaces.
fn merge(base: &mut Map<String, Value>, overlay: Map<String, Value>) {
    for (key, value) in overlay {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(base)), Value::Object(overlay)) => merge(base, overlay),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;
    use crate::api::manifest::Manifest;

    fn temporary(name: &str, files: &[(&str, &[u8])]) -> (TempDir, std::path::PathBuf) {
        let parent = TempDir::new().unwrap();
        let folder = parent.path().join(name);
        for (name, bytes) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        (parent, folder)
    }

    #[test]
    fn a_folder_becomes_a_bundle_named_after_it() {
        let (_parent, folder) =
            temporary("My.App", &[("b.yaml", b"b: <1>\n"), ("sub/a.yaml", b"a: 1\n"), ("x.bin", &[0xff])]);
        let source = super::folder(&folder).unwrap();
        let [bundle] = &source.bundles[..] else { panic!("one bundle") };
        assert_eq!(bundle.metadata.name.as_deref(), Some(names::helm_release_name("My.App").as_str()));
        let manifest = Manifest { resources: bundle.spec.resources.clone() };
        assert_eq!(
            String::from_utf8(manifest.to_bytes()).unwrap(),
            concat!(
                r#"{"resources":[{"name":"b.yaml","content":"b: \u003c1\u003e\n"},"#,
                r#"{"name":"sub/a.yaml","content":"a: 1\n"},"#,
                r#"{"name":"x.bin","content":"/w==","encoding":"base64"}]}"#,
                "\n"
            )
        );
        assert!(source.warnings.is_empty());
    }

    #[test]
    fn the_fleet_yaml_configures_and_stays_out() {
        let options = b"name: shop\nlabels: {team: a}\nnamespace: web\npaused: true\ntargets: []\n";
        let (_parent, folder) = temporary("dir", &[("fleet.yaml", options), ("a.yaml", b"a: 1")]);
        let source = super::folder(&folder).unwrap();
        let bundle = &source.bundles[0];
        assert_eq!(bundle.metadata.name.as_deref(), Some("shop"));
        assert_eq!(bundle.metadata.labels.as_ref().unwrap()["team"], "a");
        assert_eq!(bundle.spec.options.target_namespace, "web");
        assert!(bundle.spec.paused);
        assert_eq!(bundle.spec.resources.len(), 1);
        assert_eq!(source.warnings.len(), 1);
        assert!(source.warnings[0].ends_with("fleet.yaml: targets needs a Fleet controller and is ignored"));
    }

    #[test]
    fn values_files_of_a_chart_in_the_folder_win_over_inline_values() {
        let options =
            b"helm: {chart: ./c, values: {a: {x: 1, y: 1}, b: [1]}, valuesFiles: [v/one.yaml, two.yaml]}";
        let (_parent, folder) = temporary(
            "dir",
            &[
                ("fleet.yaml", options),
                ("c/Chart.yaml", b"name: c"),
                ("v/one.yaml", b"a: {x: 2}\nb: [2]"),
                ("two.yaml", b"a: {z: 3}"),
            ],
        );
        let source = super::folder(&folder).unwrap();
        let spec = &source.bundles[0].spec;
        let helm = spec.options.helm.as_ref().unwrap();
        assert_eq!(
            Value::Object(helm.values.clone().unwrap()),
            json!({"a": {"x": 2, "y": 1, "z": 3}, "b": [2]})
        );
        assert_eq!(helm.values_files, ["v/one.yaml", "two.yaml"]);
        let files: Vec<_> = spec.resources.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(files, ["c/Chart.yaml"]);
    }

    #[test]
    fn what_would_deploy_something_else_is_refused() {
        for (options, said) in [
            (&b"helm: {chart: nginx, repo: 'https://charts.example.com'}"[..], "charts are not downloaded"),
            (b"helm: {chart: oci://example.com/nginx}", "charts are not downloaded"),
        ] {
            let (_parent, folder) = temporary("dir", &[("fleet.yaml", options), ("a.yaml", b"a: 1")]);
            let error = super::folder(&folder).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let (_parent, folder) = temporary("dir", &[("fleet.yaml", b"")]);
        assert!(super::folder(&folder).unwrap_err().to_string().contains("no files to deploy"));
    }

    #[test]
    fn bundles_are_read_from_documents_of_yaml_and_json() {
        let text = "apiVersion: fleet.cattle.io/v1alpha1\nkind: Bundle\nmetadata: {name: a}\n\
                    spec: {resources: [{name: x, content: 'a: 1'}], targets: [{clusterName: c}]}\n---\n\
                    {\"apiVersion\": \"fleet.cattle.io/v1alpha1\", \"kind\": \"Bundle\", \"metadata\": {\"name\": \"b\"}}\n";
        let source = documents(text, "standard input").unwrap();
        let names: Vec<_> =
            source.bundles.iter().filter_map(|bundle| bundle.metadata.name.as_deref()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(
            source.warnings,
            ["standard input, document 1: targets needs a Fleet controller and is ignored"]
        );
    }

    #[test]
    fn other_documents_are_refused_by_number() {
        let error = documents("apiVersion: v1\nkind: ConfigMap\n", "x.yaml").unwrap_err().to_string();
        assert_eq!(error, "x.yaml, document 1 is not a Bundle of fleet.cattle.io/v1alpha1 but v1 ConfigMap");
        assert!(documents("", "x.yaml").is_err());
    }
}
