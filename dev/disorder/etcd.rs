// SPDX-License-Identifier: Apache-2.0
//! Reads along in an API server's store: every version of every object, in order, also while the server is down.
//!
//! A watch of the API may skip versions when it has to start anew; the store's own does not, as long as nothing is
//! compacted. etcd speaks JSON over HTTP; with HTTP/1.0 its stream is one object a line.

use anyhow::{Context, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// What an API server must be told so that its store can be read: JSON instead of protobuf, and no compaction.
pub const APISERVER_ARGUMENTS: [&str; 2] =
    ["--storage-media-type=application/json", "--etcd-compaction-interval=0"];

/// One version of one object.
#[derive(Debug)]
pub struct Version {
    /// Of the store; the object's resourceVersion.
    pub revision: u64,
    /// The path below `/registry/`.
    pub key: String,
    /// The object; `None`: deleted.
    pub object: Option<Value>,
}

/// An open stream of versions.
pub struct Stream {
    lines: BufReader<TcpStream>,
    line: Vec<u8>,
}

#[derive(Deserialize)]
struct Line {
    result: Answer,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    events: Vec<Event>,
    #[serde(default)]
    canceled: bool,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type", default)]
    kind: String,
    kv: Pair,
}

#[derive(Deserialize)]
struct Pair {
    key: String,
    mod_revision: String,
    #[serde(default)]
    value: String,
}

/// All keys below `/registry/`.
fn range() -> Value {
    json!({"key": STANDARD.encode("/registry/"), "range_end": STANDARD.encode("/registry0")})
}

impl Stream {
    /// Opens the stream of everything from `revision` on.
    pub async fn open(url: &str, revision: u64) -> anyhow::Result<Stream> {
        let mut request = range();
        request["start_revision"] = json!(revision.to_string());
        let lines = post(url, "/v3/watch", &json!({"create_request": request})).await?;
        Ok(Stream { lines, line: Vec::new() })
    }

    /// The next versions; those outside `wanted` are left out.
    pub async fn next(&mut self, wanted: impl Fn(&str) -> bool) -> anyhow::Result<(u64, Vec<Version>)> {
        self.line.clear();
        ensure!(self.lines.read_until(b'\n', &mut self.line).await? > 0, "the stream ended");
        let line: Line = serde_json::from_slice(&self.line).context("a line of etcd's stream")?;
        if line.result.canceled {
            bail!("etcd ended the watch");
        }
        let mut last = 0;
        let mut versions = Vec::new();
        for event in line.result.events {
            let revision = event.kv.mod_revision.parse().context("a revision")?;
            last = revision;
            let key = String::from_utf8(STANDARD.decode(&event.kv.key)?)?;
            let key = key.trim_start_matches("/registry/").to_owned();
            if !wanted(&key) {
                continue;
            }
            let object = match event.kind.as_str() {
                "DELETE" => None,
                _ => {
                    let value = STANDARD.decode(&event.kv.value)?;
                    Some(serde_json::from_slice(&value).with_context(|| format!("{key} is no JSON"))?)
                }
            };
            versions.push(Version { revision, key, object });
        }
        Ok((last, versions))
    }
}

/// Every version there ever was of what is `wanted`, in order, up to now.
pub async fn history(url: &str, wanted: impl Fn(&str) -> bool + Copy) -> anyhow::Result<Vec<Version>> {
    let end = revision(url).await?;
    let mut stream = Stream::open(url, 1).await?;
    let (mut history, mut last) = (Vec::new(), 0);
    while last < end {
        let (reached, versions) = stream.next(wanted).await?;
        history.extend(versions.into_iter().filter(|version| version.revision <= end));
        last = last.max(reached);
    }
    Ok(history)
}

/// The revision of the store now.
pub async fn revision(url: &str) -> anyhow::Result<u64> {
    let mut request = range();
    request["count_only"] = json!(true);
    let mut answer = String::new();
    post(url, "/v3/kv/range", &request).await?.read_to_string(&mut answer).await?;
    let answer: Value = serde_json::from_str(&answer)?;
    answer["header"]["revision"].as_str().and_then(|text| text.parse().ok()).context("etcd told no revision")
}

async fn post(url: &str, path: &str, body: &Value) -> anyhow::Result<BufReader<TcpStream>> {
    let host = url.strip_prefix("http://").context("only plain HTTP")?;
    let body = body.to_string();
    let mut stream = TcpStream::connect(host).await?;
    let request =
        format!("POST {path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    ensure!(line.contains(" 200 "), "etcd answered {line:?}");
    while line != "\r\n" {
        line.clear();
        ensure!(stream.read_line(&mut line).await? > 0, "etcd's answer ended in its head");
    }
    Ok(stream)
}
