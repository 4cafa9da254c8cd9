// SPDX-License-Identifier: Apache-2.0
//! `flotilla top`: replicas as lanes, what they work on, and what waits and why. Driven by watches.

mod model;
#[cfg(test)]
mod tests;
mod view;

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use clap::Args;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use ratatui::{
    DefaultTerminal,
    buffer::Buffer,
    crossterm::event::{Event as Input, KeyCode, KeyEventKind, KeyModifiers, read},
    layout::Rect,
};
use tokio::{sync::mpsc, time::Instant};

use self::{
    model::{Below, Model},
    view::Choice,
};
use super::{
    cluster::{ClusterFlags, DownstreamFlags},
    error::CliError,
    output,
};
use crate::{
    downstream::session::{ViewEvent, watch_views},
    upstream,
};

/// Width of a print.
const WIDTH: u16 = 100;
/// How long a print waits for the sessions once the bundles are there.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two draws, at least; watches may bring hundreds of changes a second.
const DRAW: Duration = Duration::from_millis(200);
/// Between two draws, at most: ages go on.
const TICK: Duration = Duration::from_secs(1);
/// Lines that a page key scrolls.
const PAGE: usize = 10;

/// Flags of `flotilla top`.
#[derive(Debug, Args)]
pub struct TopVerb {
    /// Print once, also on a terminal.
    #[arg(long)]
    pub once: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// The cluster below.
    #[command(flatten)]
    pub downstream: DownstreamFlags,
}

/// The model and what feeds it.
struct Feed {
    model: Model,
    bundles: BoxStream<'static, upstream::Event>,
    sessions: BoxStream<'static, ViewEvent>,
    started: Instant,
    began: DateTime<Utc>,
}

impl Feed {
    fn now(&self) -> DateTime<Utc> {
        self.began + TimeDelta::from_std(self.started.elapsed()).unwrap_or_default()
    }

    /// Takes in one event.
    async fn step(&mut self) {
        tokio::select! {
            Some(event) = self.bundles.next() => {
                let now = self.now();
                self.model.bundle(event, now);
            }
            Some(event) = self.sessions.next() => self.model.session(event),
        }
    }

    fn is_complete(&self) -> bool {
        self.model.listed && self.model.below != Below::Asked
    }
}

/// Shows until q, or prints once where there is no terminal. `now` is when it began.
pub async fn run(verb: &TopVerb, out: &mut dyn Write, now: DateTime<Utc>) -> Result<(), CliError> {
    let namespace = verb.cluster.namespace()?;
    let client = verb.cluster.client().await?;
    let below = verb.downstream.client().await?;
    let sessions = match &below {
        Some(client) => watch_views(client.clone(), None, &namespace).boxed(),
        None => stream::pending().boxed(),
    };
    let mut feed = Feed {
        model: Model::new(if below.is_some() { Below::Asked } else { Below::NotAsked }),
        bundles: upstream::watch(client, Some(&namespace)).boxed(),
        sessions,
        started: Instant::now(),
        began: now,
    };
    if verb.once || !io::stdout().is_terminal() {
        return once(&mut feed, &namespace, out).await;
    }
    let mut terminal = ratatui::try_init().map_err(CliError::Output)?;
    let result = show(&mut feed, &namespace, &mut terminal).await;
    ratatui::restore();
    result
}

async fn once(feed: &mut Feed, title: &str, out: &mut dyn Write) -> Result<(), CliError> {
    let deadline = Instant::now() + PATIENCE;
    while !feed.is_complete() {
        if tokio::time::timeout_at(deadline, feed.step()).await.is_err() {
            break;
        }
        if let (false, Some(error)) = (feed.model.listed, &feed.model.failed) {
            return Err(CliError::Refused(format!("list BundleDeployments in {title}: {error}")));
        }
    }
    output::write(out, &printed(&feed.model, title, feed.now()))
}

/// All of it as text, as long as it needs to be.
fn printed(model: &Model, title: &str, now: DateTime<Utc>) -> String {
    let area = Rect::new(0, 0, WIDTH, view::height(model, now, WIDTH));
    let mut buffer = Buffer::empty(area);
    view::draw(model, &mut Choice { whole: true, ..Choice::default() }, title, now, area, &mut buffer);
    let rows = buffer.content().chunks(WIDTH.into());
    let lines = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    lines.map(|line| line.trim_end().to_owned() + "\n").collect()
}

async fn show(feed: &mut Feed, title: &str, terminal: &mut DefaultTerminal) -> Result<(), CliError> {
    let mut keys = keys();
    let mut choice = Choice::default();
    let mut drawn: Option<Instant> = None;
    let mut due = Instant::now();
    loop {
        if Instant::now() >= due {
            let now = feed.now();
            let draw = |frame: &mut ratatui::Frame<'_>| {
                let area = frame.area();
                view::draw(&feed.model, &mut choice, title, now, area, frame.buffer_mut());
            };
            terminal.draw(draw).map_err(CliError::Output)?;
            drawn = Some(Instant::now());
            due = Instant::now() + TICK;
        }
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            () = feed.step() => due = due.min(drawn.map_or(due, |drawn| drawn + DRAW)),
            input = keys.recv() => match input {
                Some(input) if ends(&input) => return Ok(()),
                Some(input) => {
                    apply(&input, &mut choice);
                    due = Instant::now();
                }
                None => return Ok(()),
            },
        }
    }
}

/// Reads the keyboard on a thread of its own: reading blocks. It ends with the process.
fn keys() -> mpsc::Receiver<Input> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(input) = read() {
            if sender.blocking_send(input).is_err() {
                return;
            }
        }
    });
    receiver
}

fn ends(input: &Input) -> bool {
    let Input::Key(key) = input else { return false };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && (matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
            || control && matches!(key.code, KeyCode::Char('c' | 'd')))
}

fn apply(input: &Input, choice: &mut Choice) {
    let Input::Key(key) = input else { return };
    if key.kind != KeyEventKind::Press {
        return;
    }
    let scroll = &mut choice.scroll;
    match key.code {
        KeyCode::Up | KeyCode::Char('k') => *scroll = scroll.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => *scroll = scroll.saturating_add(1),
        KeyCode::PageUp => *scroll = scroll.saturating_sub(PAGE),
        KeyCode::PageDown => *scroll = scroll.saturating_add(PAGE),
        KeyCode::Home => *scroll = 0,
        // Drawing brings it back to the last page.
        KeyCode::End => *scroll = usize::MAX,
        KeyCode::Char('s') => choice.sort = choice.sort.next(),
        _ => {}
    }
}
