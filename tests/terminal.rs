// SPDX-License-Identifier: Apache-2.0
//! What follows changes on somebody's screen: `flotilla top` on a terminal of 80 by 24, and the watches.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, ensure};

#[path = "../dev/harness/mod.rs"]
mod harness;
#[path = "terminal/pty.rs"]
mod pty;
#[path = "terminal/screen.rs"]
mod screen;

use harness::bundles::{Bundle, NEVER_READY, NO_SUCH_KIND};
use harness::world::{Downstream, World};
use harness::{GENEROUS, Tools, until};
use pty::Pty;

const BINARY: &str = env!("CARGO_BIN_EXE_flotilla");
const BOUND: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "market";

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_followed_on_a_terminal_and_in_a_pipe() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let world = World::start(Path::new(BINARY), tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let _replicas = world.ready_replicas(2, 4).await?;
    let waiting = |name: &str| {
        let bundle = Bundle::new(name, name).file("manifests/idle.yaml", NEVER_READY);
        bundle.with(|options| options.helm.get_or_insert_default().timeout_seconds = 3000)
    };
    let refused = Bundle::new("refused", NAMESPACE).file("manifests/thing.yaml", NO_SUCH_KIND);
    publisher
        .publish(&[waiting("anchored"), refused, Bundle::config_maps("stall", NAMESPACE, 1, "1")])
        .await?;
    units.until_ready(["stall"], BOUND).await?;

    top_shows_who_works_on_what(world).await?;
    top_ends_by_the_interrupt_key(world).await?;
    for watch in [&["get", "-o", "wide", "--watch"][..], &["events", "--watch"][..]] {
        let mut followed = Followed::start(world, watch)?;
        followed.says(&["refused"]).await?;
        // What comes later.
        let late = format!("late-{}", watch[0]);
        publisher.publish(&[Bundle::config_maps(&late, NAMESPACE, 1, "1")]).await?;
        let told = if watch[0] == "get" { "Ready" } else { "FirstDeployed" };
        followed.says(&[&late, told]).await?;
        followed.interrupt().await?;
    }
    Ok(())
}

fn command(world: &World, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments).args(["--namespace", &world.registration.cluster_namespace]);
    if arguments[0] != "get" {
        command.arg("--downstream-kubeconfig").arg(world.downstream.admin_kubeconfig());
    }
    command.env("KUBECONFIG", world.upstream.admin_kubeconfig()).env("TERM", "xterm-256color");
    command
}

/// The part of the screen under a title that begins like this, to the next title.
fn part<'a>(lines: &'a [String], title: &str) -> Vec<&'a str> {
    let from = lines.iter().skip_while(|line| !line.starts_with(title)).skip(1);
    from.take_while(|line| !line.starts_with("── ")).map(String::as_str).collect()
}

async fn top_shows_who_works_on_what(world: &World) -> anyhow::Result<()> {
    let mut pty = Pty::open(80, 24)?;
    let before = pty.modes()?;
    let mut child = pty.spawn(command(world, &["top"]))?;
    let result = until("the screen to show it all", BOUND, async || {
        let lines = pty.lines()?;
        let lanes = part(&lines, "── Replicas");
        let queue = part(&lines, "── Queue");
        let lane = |name: &str| lanes.iter().find(|line| line.starts_with(name));
        let (Some(one), Some(other)) = (lane("replica-1 "), lane("replica-2 ")) else { return Ok(None) };
        let claims = [one, other].iter().filter(|line| line.contains("anchored #1")).count();
        let free = [one, other].iter().all(|line| line.contains(" free "));
        let waits = queue.iter().any(|line| line.starts_with("refused ") && line.contains(" attempt "));
        let head = lines[0].ends_with("3 bundles  1 Ready  1 WaitApplied  1 ErrApplied")
            && lines[1].contains("replicas: 2 live");
        let foot = lines[23].starts_with("q quit");
        ensure!(claims == 1 && free && waits && head && foot, "{}", lines.join("\n"));
        Ok(Some(()))
    });
    result.await.with_context(|| pty.lines().unwrap_or_default().join("\n"))?;
    ensure!(pty.modes()? != before, "it reads keys, not lines");
    ensure!(pty.is_alternate()?, "it has a screen of its own");

    pty.press("s")?;
    until("the order to change", BOUND, async || Ok((!pty.lines()?[23].contains("sort: age")).then_some(())))
        .await?;
    pty.press("q")?;
    let status = ended(&mut child).await?;
    ensure!(status.success(), "it ended with {status}");
    ensure!(pty.modes()? == before, "the terminal is not as it was");
    ensure!(!pty.is_alternate()? && pty.shows_cursor()?, "the screen is not as it was");
    Ok(())
}

async fn top_ends_by_the_interrupt_key(world: &World) -> anyhow::Result<()> {
    let mut pty = Pty::open(40, 10)?;
    let before = pty.modes()?;
    let mut child = pty.spawn(command(world, &["top"]))?;
    // The smallest screen that makes sense; the screen itself refuses what does not fit.
    until("the screen to be drawn", BOUND, async || Ok(pty.lines()?[9].starts_with("q quit").then_some(())))
        .await?;
    pty.press("\u{3}")?;
    let status = ended(&mut child).await?;
    ensure!(status.success() && pty.modes()? == before, "it ended with {status}");
    Ok(())
}

async fn ended(child: &mut Child) -> anyhow::Result<std::process::ExitStatus> {
    until("it to end", GENEROUS, async || Ok(child.try_wait()?)).await
}

/// A command that goes on, and the lines it has printed.
struct Followed {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Followed {
    fn start(world: &World, arguments: &[&str]) -> anyhow::Result<Followed> {
        let mut command = command(world, arguments);
        // Whoever was started in the background ignores the signal, and so would its children.
        // SAFETY: only a call that is safe between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::signal(libc::SIGINT, libc::SIG_DFL) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let mut child = command.stdout(Stdio::piped()).spawn().context("running flotilla")?;
        let from = BufReader::new(child.stdout.take().context("no standard output")?);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let to = lines.clone();
        // Ends with the child.
        std::thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                to.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(line);
            }
        });
        Ok(Followed { child, lines })
    }

    /// Waits for a line with all these words.
    async fn says(&self, words: &[&str]) -> anyhow::Result<()> {
        until(&format!("a line with {words:?}"), BOUND, async || {
            let lines = self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let found = lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
            ensure!(found, "{}", lines.join("\n"));
            Ok(Some(()))
        })
        .await
    }

    async fn interrupt(&mut self) -> anyhow::Result<()> {
        // SAFETY: the child is not reaped yet, so the pid is still its own.
        ensure!(unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGINT) } == 0);
        let status = ended(&mut self.child).await?;
        ensure!(status.signal() == Some(libc::SIGINT) || status.success(), "it ended with {status}");
        Ok(())
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
