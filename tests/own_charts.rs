// SPDX-License-Identifier: Apache-2.0
//! The charts: what they render, what they refuse, and that they name only what exists.
//!
//! Snapshots and READMEs are rewritten by `UPDATE_SNAPSHOTS=1 cargo test --test own_charts`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use clap::Parser;
use flotilla::cli::args::{Cli, Verb};
use flotilla::cli::doctor::rights::{self, IMPERSONATED, Right};
use flotilla::telemetry::Metrics;
use serde_json::Value;

#[path = "../dev/harness/mod.rs"]
mod harness;
#[path = "own_charts/readme.rs"]
mod readme;

use harness::Tools;

const CHARTS: [&str; 2] = ["flotilla-agent", "flotilla-controller"];

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn text(relative: &str) -> String {
    fs::read_to_string(path(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

/// Compares with what is stored, or stores it.
fn stored(relative: &str, fresh: &str) {
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(path(relative), fresh).unwrap();
    }
    let old = fs::read_to_string(path(relative)).unwrap_or_default();
    assert!(old == fresh, "{relative} is not up to date; look at the difference after UPDATE_SNAPSHOTS=1");
}

fn helm(args: &[&str]) -> Output {
    static HELM: OnceLock<PathBuf> = OnceLock::new();
    let helm = HELM.get_or_init(|| Tools::build(&["helm"]).expect("helm can be built").path("helm"));
    Command::new(helm).args(args).env_remove("KUBECONFIG").output().expect("helm can be run")
}

fn template(chart: &str, args: &[&str]) -> Result<String, String> {
    let chart_path = path(&format!("charts/{chart}")).display().to_string();
    let base = [
        "template",
        chart,
        &chart_path,
        "--namespace",
        "cattle-fleet-system",
        "--skip-schema-validation=false",
    ];
    let output = helm(&[base.as_slice(), args].concat());
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8(output.stderr).unwrap())
    }
}

/// The value sets of a chart: name and path of the file.
fn sets(chart: &str) -> Vec<(String, String)> {
    let folder = format!("tests/own_charts/{chart}");
    let mut sets: Vec<_> = fs::read_dir(path(&folder))
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".values.yaml").map(|set| (set.to_owned(), format!("{folder}/{name}")))
        })
        .collect();
    sets.sort();
    sets
}

/// What a chart renders with each of its value sets.
fn rendered(chart: &str) -> Vec<(String, String)> {
    let render = |(set, file): (String, String)| {
        let values = path(&file).display().to_string();
        let rendered =
            template(chart, &["--values", &values]).unwrap_or_else(|error| panic!("{file}: {error}"));
        (set, rendered)
    };
    sets(chart).into_iter().map(render).collect()
}

fn objects(yaml: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).expect("helm renders YAML");
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// Pod specs of an object, be it a Pod or something with a template.
fn pod_spec(object: &Value) -> Option<&Value> {
    match object["kind"].as_str()? {
        "Pod" => Some(&object["spec"]),
        "Deployment" => Some(&object["spec"]["template"]["spec"]),
        _ => None,
    }
}

#[test]
fn each_value_set_renders_as_it_is_stored() {
    for chart in CHARTS {
        for (set, rendered) in rendered(chart) {
            stored(&format!("tests/own_charts/{chart}/{set}.yaml"), &rendered);
        }
    }
}

#[test]
fn the_readme_of_each_chart_has_every_value() {
    for chart in CHARTS {
        let values = text(&format!("charts/{chart}/values.yaml"));
        let generated =
            readme::generate(chart, &text(&format!("charts/{chart}/Chart.yaml")), &values).unwrap();
        stored(&format!("charts/{chart}/README.md"), &generated);
    }
}

#[test]
fn each_value_is_explained_and_an_unexplained_one_is_found() {
    let error = readme::generate("x", "description: x\n", "# -- A.\na: 1\nb: 2\n").unwrap_err();
    assert!(error.contains('b'), "{error}");
}

#[test]
fn pods_are_confined_and_their_arguments_are_understood() {
    for chart in CHARTS {
        for (set, rendered) in rendered(chart) {
            let objects = objects(&rendered);
            let pods: Vec<&Value> = objects.iter().filter_map(pod_spec).collect();
            assert_eq!(pods.len(), 2, "{chart} {set}: the Deployment and the test");
            for pod in pods {
                let (security, container) = (&pod["securityContext"], &pod["containers"][0]);
                assert_eq!(security["runAsNonRoot"], true, "{chart} {set}");
                assert!(security["runAsUser"].as_u64().is_some_and(|user| user > 0), "{chart} {set}");
                assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault", "{chart} {set}");
                let inner = &container["securityContext"];
                assert_eq!(inner["readOnlyRootFilesystem"], true, "{chart} {set}");
                assert_eq!(inner["allowPrivilegeEscalation"], false, "{chart} {set}");
                assert_eq!(inner["capabilities"]["drop"][0], "ALL", "{chart} {set}");
                understood(container);
            }
        }
    }
}

/// Parses the arguments of a container as the program itself would.
fn understood(container: &Value) {
    let args = container["args"].as_array().expect("a container has arguments").iter();
    let args: Vec<&str> = args.map(|arg| arg.as_str().expect("arguments are text")).collect();
    let cli = Cli::try_parse_from([&["flotilla"], args.as_slice()].concat())
        .unwrap_or_else(|error| panic!("{args:?}: {error}"));
    if let Verb::Agent(verb) = cli.verb {
        let variables = container["env"].as_array().expect("the agent has variables");
        // Fields of the Pod are filled in by the kubelet.
        let lookup = |name: &str| {
            let variable = variables.iter().find(|variable| variable["name"] == name)?;
            Some(variable["value"].as_str().unwrap_or("from-the-pod").to_owned())
        };
        let resolved = verb.resolve(&lookup).unwrap_or_else(|error| panic!("{variables:?}: {error}"));
        assert!(resolved.pod_name.is_some() && resolved.pod_uid.is_some());
        assert_eq!(resolved.namespace, "from-the-pod");
        assert!(resolved.remarks.iter().all(|remark| !remark.contains("is not a positive number")));
    }
}

/// Whether one of the chart's roles gives it.
fn is_granted(objects: &[Value], right: &Right) -> bool {
    let names =
        |list: &Value, word: &str| list.as_array().is_some_and(|list| list.iter().any(|one| one == word));
    let roles = objects.iter().filter(|object| match object["kind"].as_str() {
        Some("ClusterRole") => true,
        Some("Role") => object["metadata"]["namespace"] == right.namespace.as_str(),
        _ => false,
    });
    roles.filter_map(|role| role["rules"].as_array()).flatten().any(|rule| {
        names(&rule["apiGroups"], right.group)
            && names(&rule["resources"], right.resource)
            && names(&rule["verbs"], right.verb)
            && (rule["resourceNames"].is_null() || names(&rule["resourceNames"], &right.name))
    })
}

#[test]
fn without_all_rights_the_agent_has_those_that_doctor_asks_for() {
    let values = path("tests/own_charts/flotilla-agent/local.values.yaml").display().to_string();
    let objects = objects(&template("flotilla-agent", &["--values", &values]).unwrap());
    let mut wanted = rights::downstream("cattle-fleet-system");
    wanted.extend(rights::upstream("cluster-fleet-local-local", "fleet-local", "local"));
    assert!(wanted.len() > 20);
    for right in wanted {
        // Whoever needs that adds it: it is as much as all rights of all accounts.
        let left_out = right.without == IMPERSONATED;
        assert_eq!(is_granted(&objects, &right), !left_out, "{right}");
    }
}

#[test]
fn replicas_are_the_charts_own_or_those_of_fleets_key_or_two() {
    for (set, replicas) in [
        ("debug=false", 2),
        ("agent.replicas=1", 1),
        ("agent.replicas=0", 0),
        ("replicas=0", 0),
        ("replicas=3,agent.replicas=1", 3),
    ] {
        let objects = objects(&template("flotilla-agent", &["--set", set]).unwrap());
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
        assert_eq!(deployment["spec"]["replicas"], replicas, "{set}");
    }
}

#[test]
fn values_of_the_wrong_form_are_refused_with_a_reason() {
    for (chart, set, reason) in [
        ("flotilla-agent", "replicas=many", "replicas"),
        ("flotilla-agent", "replica=3", "replica"),
        ("flotilla-agent", "agent.replicas=many", "replicas"),
        ("flotilla-agent", "agent.replica=3", "replica"),
        ("flotilla-agent", "agentTLSMode=none", "agentTLSMode"),
        ("flotilla-agent", "garbageCollectionInterval=15", "garbageCollectionInterval"),
        ("flotilla-agent", "garbageCollectionInterval=often", "garbageCollectionInterval"),
        ("flotilla-agent", "apiServerURL=fleet.example", "apiServerURL"),
        ("flotilla-agent", "apiServerURL=https://fleet.example", "clusterNamespace is required"),
        (
            "flotilla-agent",
            "apiServerURL=https://fleet.example,clusterNamespace=c,token=t",
            "tokenName is required",
        ),
        ("flotilla-agent", "token=x", "apiServerURL is required"),
        (
            "flotilla-agent",
            "local.enabled=true,apiServerURL=https://a,token=t,clusterNamespace=c",
            "exclude each other",
        ),
        ("flotilla-controller", "claimTimeout=soon", "claimTimeout"),
    ] {
        let error = template(chart, &["--set", set]).expect_err(set);
        assert!(error.contains(reason), "{set}: {error}");
    }
}

#[test]
fn the_schema_knows_every_value() {
    fn compare(at: &str, values: &Value, schema: &Value) {
        let Some(properties) = schema["properties"].as_object() else { return };
        // A parent chart has globals of its own.
        let foreign = at.starts_with("global.");
        assert!(foreign || schema["additionalProperties"] == false, "{at}: an unknown key must be refused");
        for (key, value) in values.as_object().into_iter().flatten() {
            let known = properties.get(key).unwrap_or_else(|| panic!("the schema lacks {at}{key}"));
            compare(&format!("{at}{key}."), value, known);
        }
    }
    for chart in CHARTS {
        let values: Value = serde_saphyr::from_str(&text(&format!("charts/{chart}/values.yaml"))).unwrap();
        let schema: Value =
            serde_json::from_str(&text(&format!("charts/{chart}/values.schema.json"))).unwrap();
        compare("", &values, &schema);
    }
}

/// Names of metrics in a text, without what Prometheus appends to those of histograms.
fn metric_names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names = words.filter(|word| word.starts_with("flotilla_"));
    names.map(|name| name.trim_end_matches("_bucket").to_owned()).collect()
}

#[test]
fn dashboards_and_alerts_name_only_metrics_that_exist() {
    let encoded = Metrics::new().encode();
    let real: BTreeSet<String> = encoded
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect();
    for chart in CHARTS {
        let dashboard = text(&format!("charts/{chart}/dashboards/{chart}.json"));
        let _: Value = serde_json::from_str(&dashboard).expect("a dashboard is JSON");
        let rules = text(&format!("charts/{chart}/templates/monitoring.yaml"));
        for (what, names) in [("dashboard", metric_names(&dashboard)), ("rules", metric_names(&rules))] {
            assert!(names.len() >= 2, "{chart}: {what} names {names:?}");
            for name in names {
                assert!(real.contains(&name), "{chart}: {what} names {name}, which does not exist");
            }
        }
    }
    assert!(!real.contains("flotilla_planted") && metric_names("sum(flotilla_planted{})").len() == 1);
}
