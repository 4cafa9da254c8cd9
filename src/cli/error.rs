// SPDX-License-Identifier: Apache-2.0
//! What can go wrong on the command line, and how it is told: `error: what was tried: cause: its cause`, each once.

use std::{error::Error, fmt, io};

use thiserror::Error as ThisError;

use super::args::ArgsError;
use crate::{api::manifest::ContentError, upstream::ConfigError};

/// Why a verb failed.
#[derive(Debug, ThisError)]
pub enum CliError {
    /// The arguments, or what they name, make no sense.
    #[error("{0}")]
    Refused(String),
    /// Flags and environment do not fit together.
    #[error(transparent)]
    Args(#[from] ArgsError),
    /// A file or folder cannot be read.
    #[error("read {path}")]
    Read {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("write {path}")]
    Write {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not YAML (or JSON).
    #[error("parse {what}")]
    Yaml {
        /// Which file or stream.
        what: String,
        /// Where.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// YAML, but not of the expected form.
    #[error("read {what}")]
    Form {
        /// Which document.
        what: String,
        /// Which field.
        #[source]
        source: serde_json::Error,
    },
    /// A stored Content is damaged.
    #[error("read Content {name}")]
    Content {
        /// Which.
        name: String,
        /// How.
        #[source]
        source: ContentError,
    },
    /// No usable kubeconfig.
    #[error("load the kubeconfig")]
    Kubeconfig(#[source] Box<ConfigError>),
    /// The API server refused, or was not reached.
    #[error("{doing}")]
    Server {
        /// What was tried, on what.
        doing: String,
        /// Why not.
        #[source]
        source: ServerError,
    },
    /// Something else could not be done.
    #[error("{doing}")]
    Failed {
        /// What was tried, on what.
        doing: String,
        /// Why not.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// No failure: `flotilla diff` found differences.
    #[error("there are differences")]
    Differs,
    /// `flotilla diff` could not compare.
    #[error(transparent)]
    NotCompared(Box<CliError>),
    /// An agent or a controller ended.
    #[error(transparent)]
    Ended(Box<dyn Error + Send + Sync>),
    /// Logging could not start.
    #[error("cannot start logging")]
    Logs(#[source] crate::telemetry::logs::LogsError),
    /// The runtime could not start.
    #[error("start the runtime")]
    Runtime(#[source] io::Error),
    /// The result could not be turned into text.
    #[error("print the result")]
    Print(#[source] Box<dyn Error + Send + Sync>),
    /// The result could not be written. A closed pipe is no failure.
    #[error("write the result")]
    Output(#[source] io::Error),
}

impl CliError {
    /// For `map_err` behind a request; `doing` says what was tried, on what.
    pub fn server(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |error| Self::Server { doing, source: ServerError(error) }
    }

    /// The same for what is no request.
    pub fn failed<E: Error + Send + Sync + 'static>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |error| Self::Failed { doing, source: Box::new(error) }
    }

    /// The reader of our output went away.
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::NotCompared(error) => error.is_broken_pipe(),
            _ => false,
        }
    }

    /// What the process ends with. Only `flotilla diff` has more than one: 1 for a difference, 2 for a failure.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::NotCompared(_)) { 2 } else { 1 }
    }
}

/// kube's error in words for people: its own text repeats its cause and prints structures.
#[derive(Debug)]
pub struct ServerError(pub kube::Error);

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            kube::Error::Api(status) if !status.message.is_empty() => f.write_str(&status.message),
            kube::Error::Api(status) => write!(f, "the server answered {} {}", status.code, status.reason),
            kube::Error::Service(_) | kube::Error::HyperError(_) => {
                f.write_str("the server cannot be reached")
            }
            other => write!(f, "{other}"),
        }
    }
}

impl Error for ServerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0 {
            kube::Error::Api(_) => None,
            other => other.source(),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;
    use crate::telemetry::chain;

    #[test]
    fn a_refusal_by_the_server_is_its_message() {
        let status = Status::failure("bundles are full", "Forbidden").with_code(403).boxed();
        let error = CliError::server("create Content s-1")(kube::Error::Api(status));
        assert_eq!(chain(&error), "create Content s-1: bundles are full");
        let status = Status::failure("", "Forbidden").with_code(403).boxed();
        let error = CliError::server("get it")(kube::Error::Api(status));
        assert_eq!(chain(&error), "get it: the server answered 403 Forbidden");
    }

    #[test]
    fn a_closed_pipe_is_recognised() {
        assert!(CliError::Output(io::ErrorKind::BrokenPipe.into()).is_broken_pipe());
        assert!(!CliError::Output(io::ErrorKind::StorageFull.into()).is_broken_pipe());
    }
}
