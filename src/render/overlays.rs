// SPDX-License-Identifier: Apache-2.0
//! Overlays: files that replace, add or patch others of a raw bundle.

use std::collections::BTreeMap;

use super::{
    RenderError,
    engine::{Engine, EngineError},
    files::OVERLAYS,
};

/// What makes a file of an overlay a patch.
const PATCH: &str = "_patch.";

/// Lays overlays over the files, one after the other. Inside one, replacements come before patches, and files are
/// taken by name: Fleet takes them in random order.
///
/// # Errors
/// A patch without a file to be patched, or one that does not fit.
pub(super) async fn lay(
    engine: &Engine,
    files: &mut BTreeMap<String, Vec<u8>>,
    overlays: &[String],
) -> Result<(), RenderError> {
    for overlay in overlays {
        let prefix = format!("{OVERLAYS}{overlay}/");
        let own = |(name, content): (&String, &Vec<u8>)| {
            Some((name.strip_prefix(&prefix)?.to_owned(), content.clone()))
        };
        let own: Vec<(String, Vec<u8>)> = files.iter().filter_map(own).collect();
        let (patches, replacements): (Vec<_>, Vec<_>) =
            own.into_iter().partition(|(name, _)| patched(name).is_some());
        files.extend(replacements);
        for (name, patch) in patches {
            let Some(target) = patched(&name) else { continue };
            let Some(base) = files.get_mut(&target) else {
                return Err(RenderError::MissingBase { target });
            };
            let patched = engine.patch((&target, base), (&name, &patch)).await;
            *base = patched.map_err(|error| match error {
                EngineError::Document { message, .. } => RenderError::Overlay { message },
                other => RenderError::Engine(other),
            })?;
        }
    }
    Ok(())
}

/// The file that is patched, if the name is one of a patch.
fn patched(name: &str) -> Option<String> {
    let (directory, file) = name.rsplit_once('/').map_or(("", name), |(directory, file)| (directory, file));
    let (start, end) = file.split_once(PATCH)?;
    let slash = if directory.is_empty() { "" } else { "/" };
    Some(format!("{directory}{slash}{start}.{end}"))
}

#[cfg(test)]
mod tests {
    use super::patched;

    #[test]
    fn a_patch_names_the_file_it_is_for() {
        assert_eq!(patched("a/d_patch.yaml").as_deref(), Some("a/d.yaml"));
        assert_eq!(patched("d_patch.json").as_deref(), Some("d.json"));
        assert_eq!(patched("a_patch.d/b.yaml"), None);
        assert_eq!(patched("patch.yaml"), None);
    }
}
