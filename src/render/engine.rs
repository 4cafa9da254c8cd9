// SPDX-License-Identifier: Apache-2.0
//! The agent's side of `flotilla-engine`, the child process that reads YAML exactly as Kubernetes does, renders charts
//! as Helm does, and builds kustomizations.
//!
//! The engine is a fault boundary: it has a memory limit, every request a deadline, and when it dies only the
//! requests in flight notice. Each of these is tried once more alone, in a second process, so that a document which
//! kills the engine is found and fails alone, and its neighbours succeed. One process computes on all cores; the second
//! lives only while there is something to try again.

mod ask;
mod chart_wire;
mod charts;
mod patch;
mod process;
mod quarantine;
mod session;
mod supervisor;
mod wire;

use std::{
    env, fmt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use thiserror::Error;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use ask::Oracle;
pub use charts::{
    Capabilities, KustomizeRequest, Lookup, ReleaseFacts, RenderRequest, RenderedChart, ResolveRequest,
};
use session::Call;
use supervisor::State;
use wire::{Failure, FailureKind};

/// Names the engine's executable where it does not lie beside this one.
pub const ENGINE_VARIABLE: &str = "FLOTILLA_ENGINE";

/// The engine's file name, beside the agent's.
const ENGINE_FILE: &str = if cfg!(windows) { "flotilla-engine.exe" } else { "flotilla-engine" };

/// How the engine is run. The default is right outside tests.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The executable; by default `FLOTILLA_ENGINE`, else the one beside this executable.
    pub binary: Option<PathBuf>,
    /// Longest time one request computes, or the engine gives no sign of life; then it is killed and started anew. A
    /// render takes about a millisecond. Waiting for look-ups does not count.
    pub deadline: Duration,
    /// Longest time a request waits for its turn and its answer, restarts of the engine and look-ups included.
    pub patience: Duration,
    /// Bytes of private memory at which an engine process dies. It holds 55 MB at work; the largest file that Helm accepts
    /// (5 MiB) takes about 300 MB to read when it is all short values.
    pub memory: u64,
    /// Requests that wait before further callers do.
    pub queue: usize,
    /// How long a process without work is kept. It holds some 40 MB, and a fleet at rest needs none; the next request
    /// starts another.
    pub idle: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            binary: None,
            deadline: Duration::from_secs(10),
            patience: Duration::from_secs(60),
            memory: 512 << 20,
            queue: 64,
            idle: Duration::from_secs(60),
        }
    }
}

/// One document of a file, empty ones left out.
#[derive(Clone, PartialEq)]
pub struct Document {
    /// The file's name, as given.
    pub file: String,
    /// Position among the file's documents, from 0.
    pub index: usize,
    /// Always a JSON object.
    pub value: Value,
}

/// Not the value: it may be a Secret.
impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "document {} of {}", self.index, self.file)
    }
}

/// Why the engine gave no documents.
#[derive(Debug, Error)]
pub enum EngineError {
    /// No executable where it should be.
    #[error("no engine at {}; set {ENGINE_VARIABLE} to where flotilla-engine is", list(.searched))]
    Missing {
        /// Where it was looked for.
        searched: Vec<PathBuf>,
    },
    /// A document, a template or a value is at fault.
    #[error("{message}")]
    Document {
        /// Its file; empty if the message names it.
        file: String,
        /// Its position in the file, from 0.
        index: usize,
        /// Kubernetes', Helm's or kustomize's own text; Kubernetes counts lines from the document's start.
        message: String,
    },
    /// The files, or what they expand to, are too large.
    #[error("{message}")]
    TooLarge {
        /// What and by how much.
        message: String,
    },
    /// The engine died twice, the second time with nothing else to do.
    #[error("the engine died at work on these files, alone and twice ({status})")]
    Crashed {
        /// How it ended the second time.
        status: String,
        /// It ended itself (a fault or its own memory limit); false = killed from outside, which proves nothing.
        by_itself: bool,
    },
    /// Twice no answer within the deadline, the second time with nothing else to do.
    #[error("the engine did not get through these files within {deadline:?}")]
    Overran {
        /// The limit.
        deadline: Duration,
    },
    /// The engine caught a fault of its own.
    #[error("the engine failed: {message}")]
    Fault {
        /// Its words.
        message: String,
    },
    /// The engine did not come up, or others keep it busy.
    #[error("no answer from the engine: {reason}")]
    Unavailable {
        /// What is known.
        reason: String,
    },
    /// An answer that cannot be read, as when values are nested more than 128 deep.
    #[error("the engine's answer cannot be read")]
    Answer(#[source] serde_json::Error),
}

impl EngineError {
    /// Whether the same files will fail again, whatever the state of this machine.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Document { .. } | Self::TooLarge { .. } | Self::Fault { .. } | Self::Answer(_) => true,
            Self::Crashed { by_itself, .. } => *by_itself,
            Self::Missing { .. } | Self::Overran { .. } | Self::Unavailable { .. } => false,
        }
    }
}

/// A running engine. Clones share one process, which ends with the last of them, and is let go when it has no work.
#[derive(Clone, Debug)]
pub struct Engine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: mpsc::Sender<Call>,
    state: watch::Receiver<State>,
    next_id: AtomicU64,
    patience: Duration,
}

impl Engine {
    /// Starts the engine and keeps it running. Comes back at once: until the first handshake the engine is not
    /// healthy, and requests wait. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Only [`EngineError::Missing`].
    pub fn start(config: EngineConfig) -> Result<Self, EngineError> {
        let binary = find(config.binary.as_deref())?;
        let (queue, calls) = mpsc::channel(config.queue.max(1));
        let (report, state) = watch::channel(State::Down { reason: "starting".to_owned(), starts: 0 });
        let shared = Shared { queue, state, next_id: AtomicU64::new(1), patience: config.patience };
        tokio::spawn(supervisor::run(config, binary, calls, report));
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Reads files, given as name and bytes, into their documents, in order. Every value is what Kubernetes' own
    /// reader makes of it (YAML 1.1, or JSON), with integers exact up to 64 bits.
    ///
    /// # Errors
    /// The first document at fault, or what kept the engine from answering.
    pub async fn yaml(&self, files: Vec<(String, Vec<u8>)>) -> Result<Vec<Document>, EngineError> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let id = self.next_id();
        let answer = self.ask(id, wire::yaml_request(id, &files)?, None).await?;
        let documents = wire::yaml_answer(&answer)?;
        Ok(named(documents, |file| files.get(file).map(|(name, _)| name.as_str())))
    }

    /// Renders a chart as Helm's install or upgrade would.
    ///
    /// # Errors
    /// The chart's fault, in Helm's words, or what kept the engine from answering.
    pub async fn render(&self, request: RenderRequest) -> Result<RenderedChart, EngineError> {
        self.of_chart(request, false).await
    }

    /// The objects of the chart's `crds/`, which need no rendering.
    ///
    /// # Errors
    /// As those of [`render`](Self::render).
    pub async fn crds(&self, request: RenderRequest) -> Result<Vec<Document>, EngineError> {
        Ok(self.of_chart(request, true).await?.crds)
    }

    async fn of_chart(&self, request: RenderRequest, crds_only: bool) -> Result<RenderedChart, EngineError> {
        let id = self.next_id();
        let frame = chart_wire::render_request(id, &request, crds_only)?;
        let oracle = Oracle { lookup: request.lookup, dns: request.dns };
        drop((request.files, request.values));
        let answer = self.ask(id, frame, Some(Arc::new(oracle))).await?;
        chart_wire::render_answer(&answer)
    }

    /// Builds a kustomization, as `kustomize build` would. The documents' `file` is `kustomization.yaml` with its
    /// directory.
    ///
    /// # Errors
    /// The kustomization's fault, in kustomize's words, or what kept the engine from answering.
    pub async fn kustomize(&self, request: KustomizeRequest) -> Result<Vec<Document>, EngineError> {
        let id = self.next_id();
        let answer = self.ask(id, chart_wire::kustomize_request(id, &request)?, None).await?;
        let file = Path::new(&request.directory).join("kustomization.yaml");
        Ok(named(wire::yaml_answer(&answer)?, |_| file.to_str()))
    }

    /// Which of the offered versions Helm would take, `None` if none fits.
    ///
    /// # Errors
    /// A constraint that is none, or what kept the engine from answering.
    pub async fn resolve_version(&self, request: ResolveRequest) -> Result<Option<String>, EngineError> {
        let id = self.next_id();
        let answer = self.ask(id, chart_wire::resolve_request(id, &request)?, None).await?;
        chart_wire::resolve_answer(&answer)
    }

    /// Whether the engine runs; if not, why.
    pub fn healthy(&self) -> Result<(), String> {
        health(&self.shared.state.borrow())
    }

    /// Waits until the health is another than `seen`, and gives it.
    pub async fn health_changed(&self, seen: &Result<(), String>) -> Result<(), String> {
        let mut state = self.shared.state.clone();
        match state.wait_for(|state| health(state) != *seen).await {
            Ok(state) => health(&state),
            Err(_) => Err("its supervisor ended".to_owned()),
        }
    }

    /// The process at the moment, if there is one: without work there is none.
    pub fn pid(&self) -> Option<u32> {
        match &*self.shared.state.borrow() {
            State::Up { pid, .. } => *pid,
            State::Down { .. } => None,
        }
    }

    /// How often the engine was started anew after its first start.
    pub fn restarts(&self) -> u64 {
        match &*self.shared.state.borrow() {
            State::Up { starts, .. } | State::Down { starts, .. } => starts.saturating_sub(1),
        }
    }

    fn next_id(&self) -> u64 {
        self.shared.next_id.fetch_add(1, Ordering::Relaxed)
    }

    async fn ask(
        &self,
        id: u64,
        frame: Vec<u8>,
        oracle: Option<Arc<Oracle>>,
    ) -> Result<Vec<u8>, EngineError> {
        let (reply, answer) = oneshot::channel();
        let call = Call { id, frame: Arc::new(frame), reply, oracle };
        let asked = async {
            self.shared.queue.send(call).await.map_err(|_| self.unavailable())?;
            answer.await.map_err(|_| self.unavailable())?
        };
        timeout(self.shared.patience, asked).await.map_err(|_| self.unavailable())?
    }

    fn unavailable(&self) -> EngineError {
        let reason = self.healthy().err();
        EngineError::Unavailable { reason: reason.unwrap_or_else(|| "it is busy".to_owned()) }
    }
}

/// Documents with the names of their files, which the engine counts.
fn named<'a>(documents: Vec<wire::WireDocument>, name: impl Fn(usize) -> Option<&'a str>) -> Vec<Document> {
    let named = documents.into_iter().map(|document| Document {
        file: name(document.file).unwrap_or_default().to_owned(),
        index: document.index,
        value: document.value,
    });
    named.collect()
}

fn health(state: &State) -> Result<(), String> {
    match state {
        State::Up { .. } => Ok(()),
        State::Down { reason, .. } => Err(reason.clone()),
    }
}

impl From<Failure> for EngineError {
    fn from(failure: Failure) -> Self {
        let Failure { kind, message, file, index } = failure;
        match kind {
            FailureKind::Input => Self::Document { file, index, message },
            FailureKind::Limit => Self::TooLarge { message },
            FailureKind::Protocol | FailureKind::Internal => Self::Fault { message },
        }
    }
}

/// The given path; else the variable's; else beside this executable, or one level up, where cargo puts the engine of
/// a test (tests lie in `target/<profile>/deps`).
fn find(given: Option<&Path>) -> Result<PathBuf, EngineError> {
    let searched: Vec<PathBuf> = if let Some(path) = given {
        vec![path.to_owned()]
    } else if let Some(path) = env::var_os(ENGINE_VARIABLE).filter(|path| !path.is_empty()) {
        vec![path.into()]
    } else {
        let executable = env::current_exe().unwrap_or_default();
        executable.ancestors().skip(1).take(2).map(|directory| directory.join(ENGINE_FILE)).collect()
    };
    match searched.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => Err(EngineError::Missing { searched }),
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
}
