// SPDX-License-Identifier: Apache-2.0
//! The reference page and the README name what exists, all of it and nothing else.

use std::{collections::BTreeSet, fs, path::Path};

use clap::CommandFactory;
use flotilla::{
    api::keys,
    cli::args::Cli,
    telemetry::{Metrics, events::reason},
};

fn text(path: &str) -> String {
    let full = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&full).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What stands in backticks, a line's worth each.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// Words of a text that begin with `start`, as far as `inner` characters go.
fn words<'a>(text: &'a str, start: &str, inner: fn(char) -> bool) -> BTreeSet<&'a str> {
    let begins = text.match_indices(start).map(|(at, _)| at);
    begins
        .filter(|at| {
            !text[..*at].ends_with(|before: char| before.is_alphanumeric() || "/-_.".contains(before))
        })
        .map(|at| {
            let rest = &text[at..];
            &rest[..rest.find(|c| !inner(c)).unwrap_or(rest.len())]
        })
        .collect()
}

fn metric_names(encoded: &str) -> BTreeSet<&str> {
    let types = encoded.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|line| line.split(' ').next()).collect()
}

#[test]
fn the_reference_page_has_every_metric_and_no_other() {
    let (page, encoded) = (text("docs/reference.md"), Metrics::new().encode());
    let (documented, real) = (quoted(&page), metric_names(&encoded));
    assert!(real.len() >= 20, "{real:?}");
    for name in &real {
        assert!(documented.contains(name), "docs/reference.md does not explain `{name}`");
    }
    for name in words(&page, "flotilla_", |c| c.is_ascii_alphanumeric() || c == '_') {
        assert!(real.contains(name), "docs/reference.md explains {name}, which does not exist");
    }
}

#[test]
fn the_reference_page_has_every_label_value() {
    let (page, encoded) = (text("docs/reference.md"), Metrics::new().encode());
    let documented = quoted(&page);
    for line in encoded.lines().filter(|line| line.contains('{') && !line.contains("le=\"")) {
        let value = line.split('"').nth(1).unwrap();
        let version = line.starts_with("flotilla_build_info");
        assert!(
            version || documented.contains(value),
            "docs/reference.md does not explain `{value}` of {line}"
        );
    }
}

#[test]
fn the_reference_page_has_every_event_reason() {
    let page = text("docs/reference.md");
    let documented = quoted(&page);
    for reason in reason::ALL {
        assert!(documented.contains(reason), "docs/reference.md does not explain `{reason}`");
    }
}

#[test]
fn the_reference_page_has_every_condition_and_every_reason_of_a_claim() {
    let page = text("docs/reference.md");
    let documented = quoted(&page);
    let conditions = ["Installed", "Deployed", "Ready", "Monitored", keys::CLAIM_CONDITION];
    let reasons = ["Claimed", "Waiting", "BackingOff", "Expired", "Quarantined"];
    for word in conditions.iter().chain(&reasons) {
        assert!(documented.contains(word), "docs/reference.md does not explain `{word}`");
    }
}

#[cfg(unix)]
#[test]
fn the_commands_of_the_readme_can_be_run() {
    use std::os::unix::fs::PermissionsExt;

    let readme = text("README.md");
    let commands = words(&readme, "dev/", |c| c.is_ascii_alphanumeric() || "/-_".contains(c));
    assert!(commands.contains("dev/demo") && commands.contains("dev/test"), "{commands:?}");
    for command in commands {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(command);
        let mode =
            fs::metadata(&path).unwrap_or_else(|error| panic!("{command}: {error}")).permissions().mode();
        assert!(path.is_file() && mode & 0o111 != 0, "{command} is no executable file");
    }
}

#[test]
fn the_user_guide_has_every_verb_and_the_flags_of_what_runs() {
    let guide = text("docs/user-guide.md");
    for verb in Cli::command().get_subcommands() {
        let name = verb.get_name();
        assert!(
            guide.contains(&format!("`flotilla {name}")),
            "docs/user-guide.md does not name `flotilla {name}`"
        );
        if !["agent", "controller"].contains(&name) {
            continue;
        }
        for flag in verb.get_arguments().filter_map(|flag| flag.get_long()) {
            // Fleet's own log flags and what is accepted without meaning: `--help` is enough.
            let accepted = flag.starts_with("zap-") || flag.starts_with("debug") || flag == "leader-elect";
            let known = guide.contains(&format!("`--{flag}`"));
            assert!(known || accepted, "docs/user-guide.md does not explain --{flag} of flotilla {name}");
        }
    }
}

#[test]
fn every_script_is_listed_for_contributors() {
    let page = text("CONTRIBUTING.md");
    let documented = quoted(&page);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["dev", "dev/tools"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && path.extension().is_none() {
                let script = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                assert!(documented.contains(script.as_str()), "CONTRIBUTING.md does not list {script}");
                let help = fs::read_to_string(&path).unwrap();
                assert!(help.contains("\n# help: "), "dev/help has nothing to say about {script}");
            }
        }
    }
}

#[test]
fn the_dependencies_page_has_every_direct_dependency() {
    let (manifest, page) = (text("Cargo.toml"), text("docs/dependencies.md"));
    let documented = quoted(&page);
    let mut section = "";
    let mut found = 0;
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section.ends_with("dependencies]")
            && let Some((name, _)) = line.split_once('=')
        {
            let name = name.trim().split('.').next().unwrap();
            assert!(documented.contains(name), "docs/dependencies.md does not explain `{name}`");
            found += 1;
        }
    }
    assert!(found > 20, "only {found} dependencies found in Cargo.toml");
}

#[test]
fn links_between_the_pages_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned(), "CHANGELOG.md".to_owned()];
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            pages.push(format!("docs/{name}"));
        }
    }
    for page in pages {
        let folder = root.join(&page).parent().unwrap().to_owned();
        let text = text(&page);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let elsewhere = target.is_empty() || target.contains("://");
            assert!(
                elsewhere || folder.join(target).exists(),
                "{page} links to {target}, which is not there"
            );
        }
    }
}
