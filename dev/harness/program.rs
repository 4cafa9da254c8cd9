// SPDX-License-Identifier: Apache-2.0
//! How the programs of `dev/` end.

use std::future::Future;
use std::process::ExitCode;

/// Runs a story to its end, or until Ctrl-C: 0 as promised, 1 not as promised, 130 interrupted.
///
/// A story that waits for Ctrl-C itself gets it: it is asked first.
pub async fn tell(story: impl Future<Output = anyhow::Result<()>>) -> ExitCode {
    let told = tokio::select! {
        biased;
        told = story => told,
        _ = tokio::signal::ctrl_c() => {
            eprintln!("\ninterrupted");
            return ExitCode::from(130);
        }
    };
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nnot as promised: {error:#}");
            ExitCode::FAILURE
        }
    }
}
