// SPDX-License-Identifier: Apache-2.0
//! A chart's README from the comments in its `values.yaml`: `# -- ` begins the explanation of the next key, further
//! comment lines go on with it.

/// The page, or what is wrong with the comments.
pub fn generate(chart: &str, chart_yaml: &str, values: &str) -> Result<String, String> {
    let description = field(chart_yaml, "description").ok_or("the chart has no description")?;
    let mut page = format!(
        "<!-- Generated from values.yaml: UPDATE_SNAPSHOTS=1 cargo test --test own_charts -->\n# {chart}\n\n{description}.\n\n\
         How to install it: [docs/install.md](../../docs/install.md).\n\n## Values\n\n\
         | value | default | meaning |\n|---|---|---|\n"
    );
    for row in rows(values)? {
        page += &format!("| `{}` | {} | {} |\n", row.key, row.default, row.meaning);
    }
    Ok(page)
}

struct Row {
    key: String,
    default: String,
    meaning: String,
}

fn field<'a>(yaml: &'a str, key: &str) -> Option<&'a str> {
    yaml.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).map(str::trim)
}

fn rows(values: &str) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = Vec::new();
    // Keys that lead here, with their indentation.
    let mut open: Vec<(usize, &str)> = Vec::new();
    let mut meaning: Option<String> = None;
    // Below an explained key that has keys of its own: they are its default.
    let mut inside: Option<usize> = None;
    for line in values.lines() {
        let (trimmed, indent) = (line.trim(), line.len() - line.trim_start().len());
        if trimmed.is_empty() {
            continue;
        }
        if inside.is_some_and(|outer| indent > outer) {
            continue;
        }
        inside = None;
        if let Some(begin) = trimmed.strip_prefix("# -- ") {
            meaning = Some(begin.to_owned());
        } else if let Some(more) = trimmed.strip_prefix("# ") {
            if let Some(meaning) = &mut meaning {
                *meaning += &format!(" {more}");
            }
        } else if let Some((key, value)) = trimmed.split_once(':') {
            open.retain(|(outer, _)| *outer < indent);
            open.push((indent, key));
            let key = open.iter().map(|(_, key)| *key).collect::<Vec<_>>().join(".");
            let value = value.trim();
            match (meaning.take(), value) {
                (Some(meaning), "") => {
                    inside = Some(indent);
                    rows.push(Row { key, default: "see `values.yaml`".into(), meaning });
                }
                (Some(meaning), value) => rows.push(Row { key, default: format!("`{value}`"), meaning }),
                (None, "") => {} // Its keys are explained.
                (None, _) => return Err(format!("{key} has no explanation: write `# -- ` above it")),
            }
        } else {
            return Err(format!("not understood: {line}"));
        }
    }
    Ok(rows)
}
