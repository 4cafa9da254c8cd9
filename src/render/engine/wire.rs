// SPDX-License-Identifier: Apache-2.0
//! The frames between agent and engine: four bytes of length, big endian, then JSON. `frame.go` is the other side.

use std::io;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{EngineError, ask::Question};

/// Raised with every change that an older engine would misread.
pub const PROTOCOL: u64 = 2;

/// The id of the handshake; requests count from 1.
pub const HELLO: u64 = 0;

/// Largest frame either way; `maxFrame` in `frame.go`.
pub const MAX_FRAME: usize = 64 << 20;

const HEAD: usize = 4;

/// What the engine says went wrong.
#[derive(Debug, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
    #[serde(default)]
    pub file: String,
    #[serde(default)]
    pub index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    Input,
    Limit,
    Protocol,
    /// Also what a newer engine says that this agent does not know.
    #[serde(other)]
    Internal,
}

#[derive(Deserialize)]
struct Answer<T> {
    result: Option<T>,
    error: Option<Failure>,
}

/// What the engine sends.
#[derive(Debug)]
pub enum Message {
    /// The answer to a request, to be decoded by who asked.
    Answer(u64, Vec<u8>),
    /// A request has been computing for [`super::session::SLOW`].
    Slow(u64),
    /// A request needs to know something before it can go on.
    Asks(u64, Question),
}

/// A document as the engine counts: `file` is a position among the request's files.
#[derive(Deserialize)]
pub struct WireDocument {
    pub file: usize,
    pub index: usize,
    pub value: Value,
}

#[derive(Serialize)]
struct Request<A> {
    id: u64,
    op: &'static str,
    args: A,
}

#[derive(Serialize, Deserialize)]
struct Hello {
    protocol: u64,
}

#[derive(Serialize)]
struct Sources<'a> {
    sources: Vec<Source<'a>>,
}

/// A file.
#[derive(Serialize)]
pub struct Source<'a> {
    name: &'a str,
    #[serde(flatten)]
    content: Text<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Text<'a> {
    Text(&'a str),
    /// Base64, as Go decodes bytes.
    Bytes(String),
}

/// The handshake.
pub fn hello_request() -> Vec<u8> {
    frame(&Request { id: HELLO, op: "hello", args: Hello { protocol: PROTOCOL } })
        .expect("three short words are below the limit")
}

/// Whether the engine speaks our protocol; if not, its words.
pub fn hello_answer(answer: &[u8]) -> Result<(), String> {
    match serde_json::from_slice::<Answer<Hello>>(answer) {
        Ok(Answer { error: Some(failure), .. }) => Err(failure.message),
        Ok(Answer { result: Some(hello), .. }) if hello.protocol == PROTOCOL => Ok(()),
        Ok(Answer { result: Some(hello), .. }) => {
            Err(format!("the agent speaks protocol {PROTOCOL}, the engine {}", hello.protocol))
        }
        Ok(_) | Err(_) => Err("its handshake cannot be read".to_owned()),
    }
}

/// A request for the documents of files.
pub fn yaml_request(id: u64, files: &[(String, Vec<u8>)]) -> Result<Vec<u8>, EngineError> {
    request(id, "yaml", Sources { sources: sources(files) })
}

/// Files, as text where they are.
pub fn sources(files: &[(String, Vec<u8>)]) -> Vec<Source<'_>> {
    files.iter().map(|(name, content)| source(name, content)).collect()
}

/// One file.
pub fn source<'a>(name: &'a str, content: &'a [u8]) -> Source<'a> {
    let content = match std::str::from_utf8(content) {
        Ok(text) => Text::Text(text),
        Err(_) => Text::Bytes(BASE64_STANDARD.encode(content)),
    };
    Source { name, content }
}

/// A request.
pub fn request(id: u64, op: &'static str, args: impl Serialize) -> Result<Vec<u8>, EngineError> {
    frame(&Request { id, op, args })
}

/// The documents, or the engine's error.
pub fn yaml_answer(answer: &[u8]) -> Result<Vec<WireDocument>, EngineError> {
    #[derive(Deserialize)]
    struct Documents {
        documents: Vec<WireDocument>,
    }
    decode::<Documents>(answer).map(|found| found.documents)
}

/// An answer's result, or the engine's error.
pub fn decode<T: DeserializeOwned>(answer: &[u8]) -> Result<T, EngineError> {
    match serde_json::from_slice::<Answer<T>>(answer).map_err(EngineError::Answer)? {
        Answer { error: Some(failure), .. } => Err(failure.into()),
        Answer { result: Some(result), .. } => Ok(result),
        Answer { .. } => Err(EngineError::Fault { message: "neither result nor error".to_owned() }),
    }
}

/// The next message; `None` at the end of the stream.
pub async fn read_message(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Message>> {
    #[derive(Deserialize)]
    struct Head {
        id: u64,
        #[serde(default)]
        slow: bool,
        ask: Option<Question>,
    }
    let mut head = [0; HEAD];
    match from.read_exact(&mut head).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let size = u32::from_be_bytes(head) as usize;
    if size > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {size} bytes")));
    }
    let mut body = vec![0; size];
    from.read_exact(&mut body).await?;
    let Head { id, slow, ask } = serde_json::from_slice(&body)?;
    Ok(Some(match ask {
        Some(question) => Message::Asks(id, question),
        None if slow => Message::Slow(id),
        None => Message::Answer(id, body),
    }))
}

/// Length and JSON.
pub fn frame(request: &impl Serialize) -> Result<Vec<u8>, EngineError> {
    let mut bytes = vec![0; HEAD];
    serde_json::to_writer(&mut bytes, request).map_err(EngineError::Answer)?;
    let size = bytes.len() - HEAD;
    match u32::try_from(size) {
        Ok(head) if size <= MAX_FRAME => bytes[..HEAD].copy_from_slice(&head.to_be_bytes()),
        _ => {
            let message = format!("the bundle's files have {size} bytes, more than {MAX_FRAME}");
            return Err(EngineError::TooLarge { message });
        }
    }
    Ok(bytes)
}
