// SPDX-License-Identifier: Apache-2.0
//! `flotilla ready`: asks a replica's probe. The image has no shell and no other program that could.

use std::{io::Write, time::Duration};

use clap::Args;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{error::CliError, output};
use crate::api::duration;

/// For the whole question: a probe answers from memory.
const LIMIT: Duration = Duration::from_secs(5);
/// Between two questions of `--timeout`.
const PAUSE: Duration = Duration::from_millis(500);
/// A report has a line a part; more than this is not one.
const LONGEST: u64 = 64 * 1024;

/// Flags of `flotilla ready`.
#[derive(Debug, Args)]
pub struct ReadyVerb {
    /// Where the probes are served.
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:8081")]
    pub address: String,
    /// Ask again for so long while it is not ready or does not answer.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "0")]
    pub timeout: Duration,
}

/// Prints the report; an error unless every part is ready.
pub async fn run(verb: &ReadyVerb, out: &mut dyn Write) -> Result<(), CliError> {
    let begun = Instant::now();
    loop {
        let mut report = Vec::new();
        let answer = asked(&verb.address, &mut report).await;
        if answer.is_ok() || begun.elapsed() >= verb.timeout {
            output::write(out, &String::from_utf8_lossy(&report))?;
            return answer;
        }
        sleep(PAUSE).await;
    }
}

/// Asks once; the report goes to `out`.
async fn asked(address: &str, out: &mut dyn Write) -> Result<(), CliError> {
    let refused = |why: &str| CliError::Refused(format!("ask {address} whether it is ready: {why}"));
    let answer = match timeout(LIMIT, ask(address)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(refused(&error.to_string())),
        Err(_) => return Err(refused(&format!("no answer within {} s", LIMIT.as_secs()))),
    };
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| refused("the answer is not HTTP"))?;
    output::write(out, body)?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(()),
        Some("503") => Err(CliError::Refused(format!("{address} is not ready"))),
        _ => Err(refused("that is not a probe of flotilla")),
    }
}

async fn ask(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    // HTTP/1.0: the end of the answer is the end of the connection.
    let request = format!("GET /readyz?verbose HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::telemetry::{
        Metrics, chain,
        probes::{self, Addresses, Health},
    };

    /// An address on which nobody listens (it was free a moment ago).
    fn free() -> String {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
    }

    async fn told(address: &str, timeout: Duration) -> (Result<(), String>, String) {
        let mut out = Vec::new();
        let result = run(&ReadyVerb { address: address.to_owned(), timeout }, &mut out).await;
        (result.map_err(|error| chain(&error)), String::from_utf8(out).unwrap())
    }

    #[tokio::test]
    async fn a_replica_is_asked_and_its_report_shown() {
        let (address, stop, health) = (free(), CancellationToken::new(), Health::new(&["engine"]));
        let addresses = Addresses { metrics: "0", probes: &address };
        probes::serve(addresses, health.clone(), Metrics::new(), stop.clone()).await.unwrap();
        let (result, report) = told(&address, Duration::ZERO).await;
        assert_eq!(result.unwrap_err(), format!("{address} is not ready"));
        assert!(report.contains("engine"), "{report}");
        health.set("engine", Ok(()));
        let (result, report) = told(&address, Duration::ZERO).await;
        assert!(result.is_ok() && report.contains("engine"), "{result:?} {report}");
        stop.cancel();
    }

    #[tokio::test]
    async fn nobody_there_is_not_ready() {
        let address = free();
        let (result, report) = told(&address, Duration::ZERO).await;
        assert!(result.unwrap_err().starts_with(&format!("ask {address} whether it is ready: ")));
        assert!(report.is_empty());
    }

    #[tokio::test]
    async fn with_a_timeout_it_asks_until_there_is_somebody_who_is_ready() {
        let (address, stop, health) = (free(), CancellationToken::new(), Health::new(&["engine"]));
        let later = async {
            // Asked in vain at least once before.
            tokio::task::yield_now().await;
            let addresses = Addresses { metrics: "0", probes: &address };
            probes::serve(addresses, health.clone(), Metrics::new(), stop.clone()).await.unwrap();
            health.set("engine", Ok(()));
        };
        let ((result, report), ()) = tokio::join!(told(&address, Duration::from_secs(60)), later);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(report.matches("engine").count(), 1, "the last report and no other: {report}");
        stop.cancel();
    }
}
