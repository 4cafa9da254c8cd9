// SPDX-License-Identifier: Apache-2.0
//! Log lines on standard error, as JSON for machines or as text for people.

use std::{io::IsTerminal, str::FromStr};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line: `timestamp`, `level`, `target`, `message` and the fields side by side.
    #[default]
    Json,
    /// A line for reading; coloured only on a terminal, and not when `NO_COLOR` is set.
    Text,
}

impl FromStr for Format {
    type Err = LogsError;

    fn from_str(text: &str) -> Result<Self, LogsError> {
        match text {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            other => Err(LogsError::Format(other.to_owned())),
        }
    }
}

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    /// The format is not one of the two.
    #[error("unknown log format {0:?}: use json or text")]
    Format(String),
    /// The filter does not parse.
    #[error("cannot read the log filter {filter:?}")]
    Filter {
        /// The text as given.
        filter: String,
        /// What is wrong with it.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
}

/// Starts logging for the whole process.
///
/// `filter` is a level (`info`) or a list of directives (`flotilla=debug,kube=info`). A bare level is meant for
/// Flotilla alone: libraries then log warnings only, since their debug lines drown ours.
///
/// May be called again, and in a process whose host already installed a subscriber: the first one stays.
pub fn init(format: Format, filter: &str) -> Result<(), LogsError> {
    let filter = parse(filter)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let installed = match format {
        Format::Json => {
            builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init()
        }
        Format::Text => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(colour).try_init()
        }
    };
    if installed.is_err() {
        tracing::debug!("logging was already set up");
    }
    Ok(())
}

fn parse(text: &str) -> Result<EnvFilter, LogsError> {
    let directives = match LevelFilter::from_str(text) {
        // kube's client reports each answer of 500 and more as an error of its own; ours say which request it was.
        Ok(level) => {
            format!("{},kube_client::client::builder=off,flotilla={level}", level.min(LevelFilter::WARN))
        }
        Err(_) => text.to_owned(),
    };
    EnvFilter::try_new(directives).map_err(|source| LogsError::Filter { filter: text.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_level_is_for_flotilla_and_keeps_libraries_quiet() {
        let silent = "kube_client::client::builder=off";
        assert_eq!(parse("debug").unwrap().to_string(), format!("{silent},flotilla=debug,warn"));
        assert_eq!(parse("off").unwrap().to_string(), format!("{silent},flotilla=off,off"));
        assert_eq!(parse("kube=trace").unwrap().to_string(), "kube=trace");
    }

    #[test]
    fn a_filter_that_does_not_parse_is_an_error_and_names_itself() {
        let error = parse("flotilla=loud").unwrap_err();
        assert!(error.to_string().contains("flotilla=loud"), "{error}");
    }

    #[test]
    fn starting_twice_does_no_harm() {
        init(Format::Json, "error").unwrap();
        init(Format::Text, "error").unwrap();
    }

    #[test]
    fn only_two_formats_exist() {
        assert_eq!("json".parse::<Format>().unwrap(), Format::Json);
        assert_eq!("text".parse::<Format>().unwrap(), Format::Text);
        assert!("xml".parse::<Format>().is_err());
    }
}
