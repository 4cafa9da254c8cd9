// SPDX-License-Identifier: Apache-2.0
//! The messages about charts, kustomizations and versions; `render.go`, `kustomize.go` and `versions.go` are the other
//! side.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Capabilities, EngineError, KustomizeRequest, ReleaseFacts, RenderRequest, RenderedChart, ResolveRequest,
    named,
    wire::{self, Source, WireDocument},
};

/// A request to render a chart, or only to read its `crds/`.
pub fn render_request(id: u64, asked: &RenderRequest, crds_only: bool) -> Result<Vec<u8>, EngineError> {
    #[derive(Serialize)]
    struct Render<'a> {
        sources: Vec<Source<'a>>,
        values: &'a Map<String, Value>,
        release: &'a ReleaseFacts,
        capabilities: &'a Capabilities,
        dns: bool,
        skip_schema: bool,
        crds_only: bool,
    }
    let render = Render {
        sources: wire::sources(&asked.files),
        values: &asked.values,
        release: &asked.release,
        capabilities: &asked.capabilities,
        dns: asked.dns,
        skip_schema: asked.skip_schema,
        crds_only,
    };
    wire::request(id, "render", render)
}

/// What was rendered, or the engine's error.
pub fn render_answer(answer: &[u8]) -> Result<RenderedChart, EngineError> {
    #[derive(Deserialize)]
    struct Rendering {
        names: Vec<String>,
        documents: Vec<WireDocument>,
        crds: Vec<WireDocument>,
        notes: String,
        chart: Value,
        observed: bool,
    }
    let Rendering { names, documents, crds, notes, chart, observed } = wire::decode(answer)?;
    let name = |file: usize| names.get(file).map(String::as_str);
    Ok(RenderedChart {
        documents: named(documents, name),
        crds: named(crds, name),
        notes,
        chart,
        observed_cluster: observed,
    })
}

/// A request to build a kustomization.
pub fn kustomize_request(id: u64, asked: &KustomizeRequest) -> Result<Vec<u8>, EngineError> {
    #[derive(Serialize)]
    struct Kustomize<'a> {
        sources: Vec<Source<'a>>,
        directory: &'a str,
        first: &'a [Value],
    }
    let KustomizeRequest { files, directory, first } = asked;
    wire::request(id, "kustomize", Kustomize { sources: wire::sources(files), directory, first })
}

/// A request to choose a version.
pub fn resolve_request(id: u64, asked: &ResolveRequest) -> Result<Vec<u8>, EngineError> {
    wire::request(id, "resolve-version", asked)
}

/// The version that was chosen, or the engine's error.
pub fn resolve_answer(answer: &[u8]) -> Result<Option<String>, EngineError> {
    #[derive(Deserialize)]
    struct Resolved {
        version: Option<String>,
    }
    wire::decode::<Resolved>(answer).map(|resolved| resolved.version)
}
