// SPDX-License-Identifier: Apache-2.0
//! What the engine does with the patches of overlays; `patch.go` is the other side.

use serde::{Deserialize, Serialize};

use super::{
    Engine, EngineError,
    wire::{self, Source},
};

impl Engine {
    /// Patches a file, both given as name and bytes, and gives its new bytes: JSON. A list is a JSON patch; any other
    /// patch is strategic where Kubernetes knows the kind that is patched, else a merge patch. Of several documents
    /// the one is patched that the patch names, else the first.
    ///
    /// # Errors
    /// What is wrong with one of the files, in Fleet's words, or what kept the engine from answering.
    pub async fn patch(&self, base: (&str, &[u8]), patch: (&str, &[u8])) -> Result<Vec<u8>, EngineError> {
        #[derive(Serialize)]
        struct Patch<'a> {
            sources: [Source<'a>; 2],
        }
        #[derive(Deserialize)]
        struct Patched {
            text: String,
        }
        let sources = [wire::source(base.0, base.1), wire::source(patch.0, patch.1)];
        let id = self.next_id();
        let answer = self.ask(id, wire::request(id, "patch", Patch { sources })?, None).await?;
        wire::decode::<Patched>(&answer).map(|patched| patched.text.into_bytes())
    }
}
