// SPDX-License-Identifier: Apache-2.0
//! One run of the engine: the child, and the tasks that move frames in, frames out and its messages to the log.

use std::{
    path::Path,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};
use tracing::{debug, warn};

use super::wire::{self, Message};

/// The engine reads its memory limit, in bytes, from here; `memoryVariable` in `main.go`.
const MEMORY_VARIABLE: &str = "FLOTILLA_ENGINE_MEMORY";

/// Time a process has to end after its output did.
const ENDING: Duration = Duration::from_secs(2);

/// Lines of one run that are worth a warning; a Go program dies with a long list of its threads.
const LOUD_LINES: usize = 5;

/// Answers read ahead.
const ANSWERS: usize = 4;

/// A child that passed the handshake.
pub struct Process {
    child: Child,
    requests: mpsc::Sender<Arc<Vec<u8>>>,
    answers: mpsc::Receiver<Message>,
    /// Aborted with this value.
    _tasks: JoinSet<()>,
}

impl Process {
    /// Starts the executable and waits for its handshake. An error is for people.
    /// `window` is the most requests in flight; each may also have one reply to be written.
    pub async fn start(
        binary: &Path,
        memory: u64,
        deadline: Duration,
        window: usize,
    ) -> Result<Self, String> {
        let mut child = Command::new(binary)
            .env(MEMORY_VARIABLE, memory.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", binary.display()))?;
        let (request_sender, requests) = mpsc::channel(2 * window);
        let (answer_sender, answers) = mpsc::channel(ANSWERS);
        let mut tasks = JoinSet::new();
        if let Some(stdin) = child.stdin.take() {
            tasks.spawn(write_requests(stdin, requests));
        }
        if let Some(stdout) = child.stdout.take() {
            tasks.spawn(read_answers(stdout, answer_sender));
        }
        if let Some(stderr) = child.stderr.take() {
            tasks.spawn(log_messages(stderr));
        }
        let mut process = Self { child, requests: request_sender, answers, _tasks: tasks };
        process.send(Arc::new(wire::hello_request()));
        match timeout(deadline, process.answers.recv()).await {
            Ok(Some(Message::Answer(wire::HELLO, answer))) => wire::hello_answer(&answer).map(|()| process),
            Ok(Some(_)) => Err("its first answer is not to the handshake".to_owned()),
            Ok(None) => Err(format!("it ended before the handshake: {}", process.ended().await)),
            Err(_) => Err(format!("no handshake within {deadline:?}")),
        }
    }

    /// Its id, unless it has ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Queues a frame, of which there are never more than the window. Never waits: while an engine takes no frames
    /// because its answers are not read, waiting would be a deadlock.
    pub fn send(&self, frame: Arc<Vec<u8>>) {
        if self.requests.try_send(frame).is_err() {
            debug!("the engine takes no more requests");
        }
    }

    /// The next message; `None` once the process's output ended, which is how its death is noticed. May be cancelled.
    pub async fn message(&mut self) -> Option<Message> {
        self.answers.recv().await
    }

    /// How it ended, killing it if it has not.
    pub async fn ended(&mut self) -> Ended {
        match timeout(ENDING, self.child.wait()).await {
            Ok(Ok(status)) => Ended { by_itself: !killed(status), text: status.to_string() },
            Ok(Err(error)) => Ended { by_itself: false, text: error.to_string() },
            Err(_) => {
                self.kill().await;
                Ended { by_itself: false, text: "it closed its output and hung".to_owned() }
            }
        }
    }

    /// Kills it and waits for its end.
    pub async fn kill(&mut self) {
        if let Err(error) = self.child.kill().await {
            debug!(cause = %error, "the engine was gone before it was killed");
        }
    }
}

/// How a process ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Not by a signal from outside.
    pub by_itself: bool,
    text: String,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// A signal tells nothing about the documents: people, the kernel short of memory, or a node going down send it. Go
/// ends itself with an exit code, also on a fault or at its memory limit.
#[cfg(unix)]
fn killed(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status).is_some()
}

#[cfg(not(unix))]
fn killed(_: ExitStatus) -> bool {
    false
}

async fn write_requests(mut stdin: ChildStdin, mut requests: mpsc::Receiver<Arc<Vec<u8>>>) {
    while let Some(frame) = requests.recv().await {
        if let Err(error) = stdin.write_all(&frame).await {
            debug!(cause = %error, "the engine takes no more requests");
            return;
        }
    }
}

async fn read_answers(stdout: ChildStdout, answers: mpsc::Sender<Message>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        match wire::read_message(&mut stdout).await {
            Ok(Some(message)) => {
                if answers.send(message).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                warn!(cause = %error, "the engine's answer is no frame");
                return;
            }
        }
    }
}

async fn log_messages(stderr: ChildStderr) {
    let mut lines = BufReader::new(stderr).lines();
    let mut count = 0;
    while let Ok(Some(line)) = lines.next_line().await {
        count += 1;
        if count <= LOUD_LINES {
            warn!(cause = line, "message of the engine");
        } else {
            debug!(cause = line, "message of the engine");
        }
    }
}
