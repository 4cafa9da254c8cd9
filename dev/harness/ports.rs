// SPDX-License-Identifier: Apache-2.0
//! Loopback ports that stay ours, also while the process that listens on them is being restarted.

use std::fs::{self, File, OpenOptions};
use std::net::TcpListener;

use anyhow::{Context, bail};
use rand::RngExt;

/// Below Linux' range for outgoing connections (32768 on), so that none of those takes a port of ours between
/// two starts of a server.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// A port of 127.0.0.1, reserved against other test runs for as long as the value lives.
///
/// The reservation is a file lock: it goes with the process, however that ends.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Reserves a port on which nobody listens.
    pub fn reserve() -> anyhow::Result<Port> {
        let directory = std::env::temp_dir().join("flotilla-ports");
        fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
        for _ in 0..1000 {
            let number = rand::rng().random_range(RANGE);
            let path = directory.join(number.to_string());
            let lock = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .with_context(|| format!("opening {}", path.display()))?;
            if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Ok(Port { number, _lock: lock });
            }
        }
        bail!("no free port of 127.0.0.1 in {RANGE:?}")
    }

    /// The number.
    pub fn number(&self) -> u16 {
        self.number
    }
}
