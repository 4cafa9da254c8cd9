// SPDX-License-Identifier: Apache-2.0
//! A pseudo-terminal with a program on it, and what its screen shows.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context, ensure};

use crate::screen::Screen;

/// Both ends. The near one is read by a thread, which feeds the screen.
pub struct Pty {
    near: File,
    // Kept open, so that the modes can be read after the program has ended.
    far: OwnedFd,
    screen: Arc<Mutex<Screen>>,
}

impl Pty {
    /// Opens one of this size.
    pub fn open(columns: u16, rows: u16) -> anyhow::Result<Pty> {
        let (mut near, mut far): (RawFd, RawFd) = (-1, -1);
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: both descriptors and the size are ours; the other pointers may be null.
        let opened =
            unsafe { libc::openpty(&mut near, &mut far, std::ptr::null_mut(), std::ptr::null(), &size) };
        ensure!(opened == 0, "openpty: {}", io::Error::last_os_error());
        // SAFETY: just opened, and nobody else has them.
        let (near, far) = unsafe { (File::from_raw_fd(near), OwnedFd::from_raw_fd(far)) };
        let screen = Arc::new(Mutex::new(Screen::new(columns.into(), rows.into())));
        let (mut from, to) = (near.try_clone()?, screen.clone());
        // Ends when the far end is closed.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                to.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).feed(&buffer[..count]);
            }
        });
        Ok(Pty { near, far, screen })
    }

    /// Starts a program with this as its terminal.
    pub fn spawn(&self, mut command: Command) -> anyhow::Result<Child> {
        let end = || -> io::Result<Stdio> { Ok(self.far.try_clone()?.into()) };
        command.stdin(end()?).stdout(end()?).stderr(end()?);
        // SAFETY: only calls that are safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        command.spawn().context("running flotilla")
    }

    /// Types.
    pub fn press(&mut self, keys: &str) -> anyhow::Result<()> {
        self.near.write_all(keys.as_bytes()).context("typing")
    }

    /// The screen's lines, without blanks at their ends. An error if something was drawn outside it.
    pub fn lines(&self) -> anyhow::Result<Vec<String>> {
        let screen = self.screen();
        ensure!(screen.fault.is_none(), "{:?}", screen.fault);
        Ok(screen.lines())
    }

    /// Whether the program shows a screen of its own.
    pub fn is_alternate(&self) -> anyhow::Result<bool> {
        Ok(self.screen().alternate)
    }

    /// Whether the cursor is shown.
    pub fn shows_cursor(&self) -> anyhow::Result<bool> {
        Ok(self.screen().cursor)
    }

    /// The terminal's modes: input, output, control and local flags.
    pub fn modes(&self) -> anyhow::Result<[libc::tcflag_t; 4]> {
        // SAFETY: all zeroes is a value of this plain struct, and the descriptor is open.
        let modes = unsafe {
            let mut modes: libc::termios = std::mem::zeroed();
            ensure!(libc::tcgetattr(self.far.as_raw_fd(), &mut modes) == 0, "{}", io::Error::last_os_error());
            modes
        };
        Ok([modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag])
    }

    fn screen(&self) -> MutexGuard<'_, Screen> {
        self.screen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
