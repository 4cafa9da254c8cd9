// SPDX-License-Identifier: Apache-2.0
//! Whether an API server answers, and what its clock says.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use kube::{Client, client::Body};

use super::{Now, finding::Findings};
use crate::cli::error::ServerError;

/// Of one request.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// Clocks that differ by more make certificates and tokens look expired, or not valid yet.
const OFFSET: TimeDelta = TimeDelta::seconds(60);

/// Asks for the version. Returns the server's time, or ours where it tells none; `None` when there is no answer.
pub(super) async fn reach(
    client: &Client,
    findings: &mut Findings,
    [check, clock]: [&'static str; 2],
    fix: &str,
    now: Now<'_>,
) -> Option<DateTime<Utc>> {
    let request = http::Request::get("/version").body(Body::empty()).ok()?;
    let response = match tokio::time::timeout(LIMIT, client.send(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            findings.fail(check, format!("no answer: {}", crate::telemetry::chain(&ServerError(error))), fix);
            return None;
        }
        Err(_) => {
            findings.fail(check, format!("no answer within {} s", LIMIT.as_secs()), fix);
            return None;
        }
    };
    let version = match tokio::time::timeout(LIMIT, client.apiserver_version()).await {
        Ok(Ok(version)) => format!("answers, Kubernetes {}", version.git_version),
        Ok(Err(_)) | Err(_) => format!("answers with {}", response.status()),
    };
    findings.ok(check, version);
    let date = response.headers().get(http::header::DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| DateTime::parse_from_rfc2822(date).ok());
    let Some(date) = date.map(|date| date.with_timezone(&Utc)) else {
        findings.skip(clock, "the API server does not tell its time");
        return Some(now());
    };
    offset(findings, clock, date - now());
    Some(date)
}

fn offset(findings: &mut Findings, check: &'static str, offset: TimeDelta) {
    let seconds = offset.num_seconds();
    if offset.abs() <= OFFSET {
        findings.ok(check, "differs from this machine's by less than a minute");
    } else {
        let direction = if seconds > 0 { "ahead of" } else { "behind" };
        findings.warn(
            check,
            format!("is {} s {direction} this machine's clock", seconds.abs()),
            "set both clocks by NTP: certificates and tokens are judged by them (claims are not)",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::finding::Verdict;

    #[test]
    fn clocks_that_differ_by_more_than_a_minute_are_told() {
        for (seconds, verdict, word) in [
            (0, Verdict::Ok, "less"),
            (-59, Verdict::Ok, "less"),
            (90, Verdict::Warning, "90 s ahead"),
            (-3600, Verdict::Warning, "3600 s behind"),
        ] {
            let mut findings = Findings::default();
            offset(&mut findings, "clock", TimeDelta::seconds(seconds));
            assert_eq!(findings.0[0].verdict, verdict, "{seconds}");
            assert!(findings.0[0].text.contains(word), "{:?}", findings.0[0]);
        }
    }
}
