// SPDX-License-Identifier: Apache-2.0
//! What the engine does with the patches of overlays.

use std::sync::atomic::Ordering;

use super::{Engine, EngineError, wire};

impl Engine {
    /// Patches a file, both given as name and bytes, and gives its new bytes: JSON. A list is a JSON patch; any other
    /// patch is strategic where Kubernetes knows the kind that is patched, else a merge patch. Of several documents
    /// the one is patched that the patch names, else the first.
    ///
    /// # Errors
    /// What is wrong with one of the files, in Fleet's words, or what kept the engine from answering.
    pub async fn patch(&self, base: (&str, &[u8]), patch: (&str, &[u8])) -> Result<Vec<u8>, EngineError> {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let answer = self.ask(id, wire::patch_request(id, base, patch)?).await?;
        wire::patch_answer(&answer)
    }
}
