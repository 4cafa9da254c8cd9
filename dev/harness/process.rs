// SPDX-License-Identifier: Apache-2.0
//! Child processes that leave nothing behind.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Duration;

use anyhow::{Context, bail};

/// Whether a process may outlive the one that started it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// Killed when its handle is dropped, and by the kernel when we die in whatever way.
    #[default]
    Bound,
    /// Goes on without us (`dev/up`); `dev/down` ends it by its recorded pid.
    Detached,
}

/// A running program with its log file.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
    status: Option<ExitStatus>,
    lifetime: Lifetime,
}

type Request = (Command, mpsc::Sender<io::Result<Child>>);

/// Forks on one thread that lives as long as this process does.
///
/// PR_SET_PDEATHSIG fires when the *thread* that forked ends, and the threads of a test end early.
fn fork(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Request>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Request>();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for (mut command, reply) in receiver {
                    let _ = reply.send(command.spawn());
                }
            })
            .expect("a thread can be started");
        Mutex::new(sender)
    });
    let (reply, result) = mpsc::channel();
    let gone = || io::Error::other("the spawner thread is gone");
    spawner.lock().map_err(|_| gone())?.send((command, reply)).map_err(|_| gone())?;
    result.recv().map_err(|_| gone())?
}

impl Process {
    /// Starts `command` with its output appended to `log`, and records its pid in `pids` when given.
    pub fn spawn(
        name: &str,
        mut command: Command,
        log: &Path,
        pids: Option<&Path>,
        lifetime: Lifetime,
    ) -> anyhow::Result<Process> {
        let file = append(log)?;
        let parent = std::process::id();
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // SAFETY: only async-signal-safe system calls between fork and exec.
        unsafe {
            command.pre_exec(move || match lifetime {
                Lifetime::Bound => {
                    if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                        return Err(io::Error::last_os_error());
                    }
                    // The parent may have died before the line above took effect.
                    if libc::getppid() as u32 != parent {
                        libc::_exit(1);
                    }
                    Ok(())
                }
                // A session of its own: Ctrl-C in the launcher's terminal is not for it.
                Lifetime::Detached => match libc::setsid() {
                    -1 => Err(io::Error::last_os_error()),
                    _ => Ok(()),
                },
            });
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let child = fork(command).with_context(|| format!("starting {name} ({program})"))?;
        if let Some(pids) = pids {
            writeln!(append(pids)?, "{} {name}", child.id())
                .with_context(|| format!("recording a pid in {}", pids.display()))?;
        }
        Ok(Process { name: name.into(), log: log.into(), child, status: None, lifetime })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, once it has ended.
    pub fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Fails, with the end of the log, when the process has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.exited()? {
            None => Ok(()),
            Some(status) => bail!("{} ended ({status})\n{}", self.name, self.tail()),
        }
    }

    /// Sends a signal; does nothing when the process has ended, for its pid may be someone else's by now.
    pub fn signal(&mut self, signal: i32) -> io::Result<()> {
        if self.exited()?.is_some() {
            return Ok(());
        }
        // SAFETY: the child is not reaped yet, so the pid is still its own.
        match unsafe { libc::kill(self.pid() as libc::pid_t, signal) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits for the end of the process.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// SIGKILL, and waits until the process is gone (a matter of milliseconds, also when it is stopped).
    pub fn kill(&mut self) -> io::Result<()> {
        self.signal(libc::SIGKILL)?;
        if self.status.is_none() {
            self.status = Some(self.child.wait()?);
        }
        Ok(())
    }

    /// The whole log so far.
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The last lines of the log, for an error text.
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(15);
        format!("--- end of {} ---\n{}", self.log.display(), lines[from..].join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.lifetime == Lifetime::Bound {
            let _ = self.kill();
        }
    }
}

fn append(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))
}
