// SPDX-License-Identifier: Apache-2.0
//! The record's text, against the text that Go's writer makes of what the real helm rendered.
//!
//! Fleet's agent does not keep helm's text: it marks each object and prints it anew with the writer that kubectl prints
//! with. So kubectl marks and prints here.

use std::{fs, path::Path, process::Command, sync::Arc};

use flotilla::{
    api::{
        BundleDeploymentOptions, HelmOptions, keys,
        manifest::{BundleResource, Manifest},
        names,
    },
    render::{
        self, Job,
        engine::{Engine, ReleaseFacts},
    },
};
use serde_json::{Map, Value};

use super::{
    cases::{self, Case},
    cluster::{self, Nothing},
    helm::Helm,
    object,
};

const BUNDLE: &str = "rel";
/// kubectl takes a List apart by itself; and a name that is no text is refused, as Fleet's agent refuses it.
const NOT_COMPARED: [&str; 2] = ["lists", "order"];

/// Compares one chart; how many texts there were.
pub async fn compare(
    engine: &Engine,
    helm: &Helm<'_>,
    kubectl: &Path,
    (kube_version, api_versions): &(String, Vec<String>),
    mut case: Case,
) -> Result<usize, String> {
    let values = case.take("user values").unwrap_or_default();
    let (skip_schema, others) =
        (case.take("skip schema").is_some(), ["upgrade", "fails"].map(|word| case.take(word).is_some()));
    if others.contains(&true) || NOT_COMPARED.contains(&case.name.as_str()) {
        return Ok(0);
    }
    let values_file = helm.home.join(format!("{}-values.yaml", case.name));
    fs::write(&values_file, &values).expect("a file");
    let chart = helm.home.join(format!("{}.tgz", case.name));
    fs::write(&chart, cases::archive(&case.files)).expect("a file");
    let mut options = vec!["-f", values_file.to_str().expect("a plain path")];
    if skip_schema {
        options.push("--skip-schema-validation");
    }
    let theirs = helm.install(engine, &chart, &options).await.map_err(|error| format!("helm: {error}"))?;

    let user = engine.yaml(vec![("values".to_owned(), values)]).await.expect("sound values");
    let user: Map<String, Value> =
        user.into_iter().next().map_or_else(Map::new, |document| object(document.value));
    let files = case.files.into_iter().map(|(name, content)| BundleResource::from_bytes(name, content));
    let manifest = Manifest { resources: files.collect() };
    let helm_options =
        HelmOptions { skip_schema_validation: skip_schema, disable_dns: true, ..HelmOptions::default() };
    let options = BundleDeploymentOptions { helm: Some(helm_options), ..BundleDeploymentOptions::default() };
    let job = Job {
        bd_name: BUNDLE,
        options: &options,
        manifest: &manifest,
        scope: "",
        agent_namespace: "agents",
        commit: "",
        release: &ReleaseFacts {
            name: "rel".into(),
            namespace: "space".into(),
            revision: 1,
            is_upgrade: false,
        },
        capabilities: &cluster::capabilities(kube_version, api_versions),
        lookup: &(Arc::new(Nothing) as _),
        values: &user,
        previous_values: None,
    };
    let ours = render::render(engine, job).await.map_err(|error| format!("we say: {error}"))?;
    let mut ours = texts(&ours.manifest);
    let mut strange = Vec::new();
    let count = ours.len();
    for (index, text) in theirs.texts.iter().enumerate() {
        let read = engine.yaml(vec![("document".to_owned(), text.clone().into_bytes())]).await;
        let read = read.expect("helm writes what can be read");
        // Nothing but comments, or no object: neither agent keeps it.
        if read.iter().all(|document| !document.value["kind"].is_string()) {
            continue;
        }
        let file = helm.home.join(format!("{}-{index}.yaml", case.name));
        fs::write(&file, text).expect("a file");
        let printed = marked(kubectl, &file)?;
        match ours.iter().position(|ours| is_printed_as(ours, &printed)) {
            Some(found) => drop(ours.remove(found)),
            None => strange.push(printed),
        }
    }
    let told = |texts: &[String]| -> String { texts.iter().map(|text| format!("---\n{text}\n")).collect() };
    if ours.is_empty() && strange.is_empty() {
        Ok(count)
    } else {
        Err(format!("record:\n{}printed:\n{}", told(&ours), told(&strange)))
    }
}

/// Equal, byte for byte, but that Go's writer breaks long lines at a blank, and ours never breaks any.
pub fn is_printed_as(ours: &str, printed: &str) -> bool {
    let (mut ours, mut printed) = (ours, printed);
    loop {
        let (Some(our), Some(their)) = (ours.chars().next(), printed.chars().next()) else {
            return ours == printed;
        };
        printed = &printed[their.len_utf8()..];
        ours = &ours[our.len_utf8()..];
        if our == ' ' && their == '\n' {
            printed = printed.trim_start_matches(' ');
        } else if our != their {
            return false;
        }
    }
}

/// The documents of a record, without their sources and last line ends.
fn texts(manifest: &str) -> Vec<String> {
    let documents = manifest.split("---\n# Source: ").skip(1);
    documents
        .map(|document| document.split_once('\n').expect("more than its source").1.trim_end().to_owned())
        .collect()
}

/// An object with Fleet's marks, as Go prints it.
fn marked(kubectl: &Path, file: &Path) -> Result<String, String> {
    let set_id = names::set_id(BUNDLE, "");
    let label = format!("{}={}", keys::HASH_LABEL, names::object_hash(&set_id));
    let annotation = format!("{}={set_id}", keys::ID_ANNOTATION);
    let labelled = file.with_extension("labelled");
    let run = |verb: &str, from: &Path, mark: &str| {
        let mut command = Command::new(kubectl);
        command.args([verb, "--local", "--overwrite", "-o", "yaml", "-f"]).arg(from).arg(mark);
        let output = command.env("KUBECONFIG", "/dev/null").output().expect("kubectl runs");
        let (text, error) = (String::from_utf8(output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() {
            Ok(text.expect("text"))
        } else {
            Err(format!("kubectl {verb}: {error}"))
        }
    };
    fs::write(&labelled, run("label", file, &label)?).expect("a file");
    Ok(run("annotate", &labelled, &annotation)?.trim_end().to_owned())
}
