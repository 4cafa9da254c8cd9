// SPDX-License-Identifier: Apache-2.0
//! Label selectors: whether they are valid, what they select, and how Go prints them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// A selector that Kubernetes would refuse, in its words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// None of the four operators.
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
    /// `In` or `NotIn` of nothing.
    #[error("values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty")]
    NoValues,
    /// `Exists` or `DoesNotExist` with values.
    #[error("values: Invalid value: {0:?}: values set must be empty for exists and does not exist")]
    Values(Vec<String>),
}

/// Whether the selector can be used.
///
/// # Errors
/// The first rule that cannot.
pub fn check(selector: &LabelSelector) -> Result<(), SelectorError> {
    for rule in selector.match_expressions.iter().flatten() {
        let values = rule.values.as_deref().unwrap_or_default();
        match rule.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => return Err(SelectorError::NoValues),
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                return Err(SelectorError::Values(values.to_vec()));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => return Err(SelectorError::Operator(other.to_owned())),
        }
    }
    Ok(())
}

/// Whether these labels are selected. A rule that cannot be used selects nothing.
pub fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().flatten().all(|rule| allows(rule, labels.get(&rule.key)))
}

fn allows(rule: &LabelSelectorRequirement, value: Option<&String>) -> bool {
    let listed = value.is_some_and(|value| rule.values.iter().flatten().any(|one| one == value));
    match rule.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

/// The selector as Go prints it: its rules by key, values in order.
pub fn text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, value)| (key.as_str(), format!("{key}={value}")));
    let rules = selector.match_expressions.iter().flatten().map(|rule| {
        let mut values: Vec<&str> = rule.values.iter().flatten().map(String::as_str).collect();
        values.sort_unstable();
        let text = match rule.operator.as_str() {
            "Exists" => rule.key.clone(),
            "DoesNotExist" => format!("!{}", rule.key),
            operator => format!("{} {} ({})", rule.key, operator.to_lowercase(), values.join(",")),
        };
        (rule.key.as_str(), text)
    });
    let mut all: Vec<(&str, String)> = labels.chain(rules).collect();
    all.sort_by_key(|(key, _)| *key);
    all.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}

/// A map of labels as Go prints it.
pub fn go_map(labels: &BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}:{value}")).collect();
    format!("map[{}]", pairs.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selector(value: Value) -> LabelSelector {
        serde_json::from_value(value).unwrap()
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn every_operator_selects_as_in_kubernetes() {
        let rule = |operator: &str, values: &[&str]| {
            selector(json!({"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}))
        };
        let (a, none) = (labels(&[("k", "a")]), labels(&[]));
        for (rule, on_a, on_none) in [
            (rule("In", &["a", "b"]), true, false),
            (rule("In", &["b"]), false, false),
            (rule("NotIn", &["a"]), false, true),
            (rule("NotIn", &["b"]), true, true),
            (rule("Exists", &[]), true, false),
            (rule("DoesNotExist", &[]), false, true),
        ] {
            assert_eq!((matches(&rule, &a), matches(&rule, &none)), (on_a, on_none), "{}", text(&rule));
        }
        let both =
            json!({"matchLabels": {"k": "a"}, "matchExpressions": [{"key": "z", "operator": "Exists"}]});
        assert!(!matches(&selector(both), &a));
        assert!(matches(&LabelSelector::default(), &none));
    }

    #[test]
    fn texts_are_gos() {
        let all = selector(json!({"matchLabels": {"m": "1", "a": "x"}, "matchExpressions": [
            {"key": "z", "operator": "In", "values": ["c", "b"]}, {"key": "b", "operator": "DoesNotExist"},
            {"key": "n", "operator": "NotIn", "values": ["q"]}, {"key": "e", "operator": "Exists"}]}));
        assert_eq!(text(&all), "a=x,!b,e,m=1,n notin (q),z in (b,c)");
        assert_eq!(go_map(&labels(&[("b", "2"), ("a", "1")])), "map[a:1 b:2]");
        assert_eq!(go_map(&labels(&[])), "map[]");
    }

    #[test]
    fn what_kubernetes_refuses_is_refused() {
        let one = |rule: Value| check(&selector(json!({"matchExpressions": [rule]})));
        let told = |rule| one(rule).unwrap_err().to_string();
        assert_eq!(
            told(json!({"key": "k", "operator": "Foo"})),
            "\"Foo\" is not a valid label selector operator"
        );
        assert!(told(json!({"key": "k", "operator": "In"})).ends_with("values set can't be empty"));
        assert!(told(json!({"key": "k", "operator": "Exists", "values": ["a"]})).contains("[\"a\"]"));
        assert_eq!(one(json!({"key": "k", "operator": "NotIn", "values": ["a"]})), Ok(()));
    }
}
