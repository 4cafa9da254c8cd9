// SPDX-License-Identifier: Apache-2.0
//! The screen of `flotilla top`, drawn from the model alone.

use chrono::{DateTime, Utc};
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line as Text, Span},
    widgets::{Paragraph, Widget},
};

use super::model::{Below, Lane, Line, Model, Sort};
use crate::{api::state::State, cli::age};

/// Lanes that are shown at most; the rest is counted.
const LANES: usize = 8;
/// Takeovers that are shown at most.
const TAKEOVERS: usize = 3;
/// Width of replicas' names.
const REPLICA: usize = 16;
/// Width of a lane before its claims.
const HEAD: usize = REPLICA + 27;
/// Width of the first line without the namespace and the states: the command's name, the time, and what parts them.
const NAMED_HEAD: usize = 26;
/// Less of the namespace than this tells nothing.
const TITLE: usize = 8;
/// Width of bundles' names.
const NAME: usize = 24;

/// What the person chose.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Order of claims and queue.
    pub sort: Sort,
    /// First line of the queue that is shown.
    pub scroll: usize,
    /// All of it, for a print that nobody can scroll: no footer.
    pub whole: bool,
}

/// How many lines a print of all of it takes.
pub fn height(model: &Model, now: DateTime<Utc>, width: u16) -> u16 {
    let lanes: usize = model.lanes(Sort::Age, now).iter().map(|lane| rows(lane, width).len()).sum();
    let lanes = lanes.max(1);
    let queue = model.queue(Sort::Age, now).len().max(1);
    let takeovers = model.takeovers().count().min(TAKEOVERS);
    let lines = 2 + (1 + lanes) + (1 + queue) + takeovers + usize::from(takeovers > 0);
    u16::try_from(lines).unwrap_or(u16::MAX)
}

/// Draws all of it. `title` names the cluster namespace.
pub fn draw(
    model: &Model,
    choice: &mut Choice,
    title: &str,
    now: DateTime<Utc>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let lanes = model.lanes(choice.sort, now);
    let takeovers: Vec<_> = model.takeovers().take(TAKEOVERS).collect();
    let lines = match choice.whole {
        true => lanes.iter().map(|lane| rows(lane, area.width).len()).sum(),
        false => lanes.len().min(LANES),
    };
    let part = |lines: usize| Constraint::Length(u16::try_from(lines).unwrap_or(u16::MAX));
    let [head, top, queue, below, foot] = Layout::vertical([
        part(2),
        part(1 + lines.max(1)),
        Constraint::Min(2),
        part(if takeovers.is_empty() { 0 } else { 1 + takeovers.len() }),
        part(usize::from(!choice.whole)),
    ])
    .areas(area);
    Paragraph::new(header(model, choice.whole, title, &lanes, now, head.width)).render(head, buffer);
    Paragraph::new(lanes_text(model, choice.whole, &lanes, top)).render(top, buffer);
    let lines = model.queue(choice.sort, now);
    Paragraph::new(queue_text(&lines, choice, model, queue)).render(queue, buffer);
    if !takeovers.is_empty() {
        let mut text = vec![bar("Takeovers", below.width)];
        text.extend(takeovers.iter().map(|one| {
            let at = one.at.format("%H:%M:%S");
            Text::from(format!("{at}  {:<NAME$}  {} → {}", cut(&one.name, NAME), one.from, one.to))
        }));
        Paragraph::new(text).render(below, buffer);
    }
    if !choice.whole {
        let keys = format!("q quit   ↑ ↓ scroll   s sort: {}", choice.sort.word());
        Paragraph::new(Text::from(keys).style(dim())).render(foot, buffer);
    }
}

fn header<'a>(
    model: &Model,
    whole: bool,
    title: &str,
    lanes: &[Lane],
    now: DateTime<Utc>,
    width: u16,
) -> Vec<Text<'a>> {
    let mut told = Vec::new();
    if let Some(error) = &model.failed {
        told.push(Span::styled(format!("bundles not seen: {error}"), Style::new().fg(Color::Red)));
    } else if !model.listed {
        told.push(Span::raw("reading …"));
    } else {
        told.push(Span::raw(format!("{} bundles", model.len())));
        for (state, count) in model.states() {
            told.push(Span::styled(format!("  {count} {state}"), Style::new().fg(colour(state))));
        }
    }
    // The states matter more than the name of the namespace, whose end tells it apart.
    let rest: usize = told.iter().map(Span::width).sum();
    let room = usize::from(width).saturating_sub(NAMED_HEAD + rest);
    let title = if room < TITLE { String::new() } else { format!("{}  ", end(title, room)) };
    let mut first = vec![
        Span::styled("flotilla top", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!("  {title}{}  ", now.format("%H:%M:%S"))),
    ];
    first.append(&mut told);
    let live = lanes.iter().filter(|lane| lane.live).count();
    let replicas = match &model.below {
        Below::NotAsked => "replicas: only holders of claims are seen".to_owned(),
        Below::Asked => "replicas: reading …".to_owned(),
        Below::Seen => format!("replicas: {live} live"),
        Below::Failed(error) => format!("replicas not seen: {error}"),
    };
    // One look shows no rate.
    let second = if whole {
        replicas
    } else {
        format!("{:.1} bundles/s   takeovers: {}   {replicas}", model.rate(now), model.taken_over)
    };
    vec![Text::from(first), Text::from(second)]
}

fn lanes_text<'a>(model: &Model, whole: bool, lanes: &[Lane], area: Rect) -> Vec<Text<'a>> {
    let mut text =
        vec![bar("Replicas: free slots, version, last sign of life, claims (#attempt, age)", area.width)];
    let room = usize::from(area.height).saturating_sub(1);
    let shown = if !whole && lanes.len() > room { room.saturating_sub(1) } else { lanes.len() };
    for lane in &lanes[..shown] {
        let (facts, style) = match &lane.seen {
            Some((free, version, silent)) => {
                let style = if lane.live { Style::new() } else { Style::new().fg(Color::Red) };
                (format!("{free:>3} free  {version:<7} {:>6}", age::text(*silent)), style)
            }
            None if model.below == Below::Seen => {
                (format!("{:<24}", "  no Lease: ended"), Style::new().fg(Color::Red))
            }
            None => (format!("{:>3}{:21}", "?", ""), Style::new()),
        };
        let head = format!("{:<REPLICA$} {facts}  ", end(&lane.holder, REPLICA));
        let claims = Style::new().fg(Color::Cyan);
        let lines = match whole {
            true => rows(lane, area.width),
            false => vec![packed(&lane.claims, usize::from(area.width).saturating_sub(HEAD))],
        };
        for (at, line) in lines.into_iter().enumerate() {
            let head = if at == 0 { head.clone() } else { format!("{:HEAD$}", "") };
            text.push(Text::from(vec![Span::styled(head, style), Span::styled(line, claims)]));
        }
    }
    if lanes.len() > shown {
        text.push(Text::from(format!("… and {} more replicas", lanes.len() - shown)).style(dim()));
    }
    if lanes.is_empty() {
        text.push(Text::from("nobody works").style(dim()));
    }
    text
}

/// All claims of a lane, on as many lines as they take; at least one.
fn rows(lane: &Lane, width: u16) -> Vec<String> {
    let width = usize::from(width).saturating_sub(HEAD);
    let mut rows = vec![String::new()];
    for claim in &lane.claims {
        let next = claim.claim();
        match rows.last_mut() {
            Some(row) if row.is_empty() => row.push_str(&next),
            Some(row) if row.chars().count() + 3 + next.chars().count() <= width => {
                row.push_str(&format!(" │ {next}"));
            }
            _ => rows.push(next),
        }
    }
    rows
}

/// As many claims as fit, and how many do not.
fn packed(claims: &[Line], width: usize) -> String {
    let mut text = String::new();
    for (at, claim) in claims.iter().enumerate() {
        let next = if at == 0 { claim.claim() } else { format!(" │ {}", claim.claim()) };
        let left = claims.len() - at;
        let tail = if left > 1 { format!(" +{}", left - 1).chars().count() } else { 0 };
        if text.chars().count() + next.chars().count() + tail > width {
            text.push_str(&format!(" +{left}"));
            return text;
        }
        text.push_str(&next);
    }
    text
}

fn queue_text<'a>(lines: &[Line], choice: &mut Choice, model: &Model, area: Rect) -> Vec<Text<'a>> {
    let room = usize::from(area.height).saturating_sub(1);
    choice.scroll = choice.scroll.min(lines.len().saturating_sub(room.max(1)));
    let from = choice.scroll;
    let until = (from + room).min(lines.len());
    let position = match lines.len() {
        0 => String::new(),
        count => format!(" {}–{until} of {count}", from + 1),
    };
    let mut text = vec![bar(&format!("Queue{position}: attempts, age, why"), area.width)];
    if lines.is_empty() && model.listed {
        text.push(Text::from("nothing waits").style(dim()));
    }
    for line in &lines[from..until] {
        let attempt = if line.attempt == 0 { "-".to_owned() } else { line.attempt.to_string() };
        let age = age::text(line.seconds);
        let head = format!("{:<NAME$} {attempt:>4} {age:>6}  ", cut(&line.name, NAME));
        let width = usize::from(area.width).saturating_sub(head.chars().count());
        text.push(Text::from(format!("{head}{}", cut(&line.why, width))));
    }
    text
}

fn bar<'a>(title: &str, width: u16) -> Text<'a> {
    let title = format!("── {title} ");
    let title = cut(&title, width.into());
    let rest = usize::from(width).saturating_sub(title.chars().count());
    Text::from(format!("{title}{}", "─".repeat(rest))).style(dim())
}

/// At most so many characters; what is cut off is shown by `…`.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// The same, cut off at the front: what tells Pods apart is the end of their names.
fn end(text: &str, width: usize) -> String {
    match text.chars().count().checked_sub(width) {
        None | Some(0) => text.to_owned(),
        Some(over) => std::iter::once('…').chain(text.chars().skip(over + 1)).collect(),
    }
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn colour(state: State) -> Color {
    match state {
        State::Ready => Color::Green,
        State::ErrApplied => Color::Red,
        State::NotReady | State::Modified | State::OutOfSync => Color::Yellow,
        State::Pending | State::WaitApplied => Color::Reset,
    }
}
