// SPDX-License-Identifier: Apache-2.0
//! What the replica's one loop takes in. Everything that waits runs elsewhere and answers with a message.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::attempt::Ended;
use crate::{api::BundleDeployment, protocol::Input};

/// Messages that may wait for the loop; tasks wait when it is full. Several for each worker slot and monitor.
pub const CAPACITY: usize = 1024;

/// A unit's key: the BundleDeployment's name, since all are in one namespace.
pub type Name = Arc<str>;

/// An answer of a task.
#[derive(Debug)]
pub enum Message {
    /// For the protocol.
    Unit {
        /// Which unit.
        name: Name,
        /// What happened.
        input: Box<Input>,
    },
    /// A live read, or a write's answer, brought the object itself.
    Object {
        /// Which unit.
        name: Name,
        /// It.
        object: Box<BundleDeployment>,
        /// What it answers.
        from: Source,
    },
    /// A deployment ended; its result waits here for the finish.
    Ended {
        /// Which unit.
        name: Name,
        /// With what.
        ended: Box<Ended>,
    },
    /// Monitoring looked at a unit.
    Monitored {
        /// Which unit.
        name: Name,
        /// The release that its status named.
        release: String,
        /// What it found.
        outcome: super::monitoring::Outcome,
    },
    /// Something that a former holder sent landed after the sweep.
    Strays {
        /// Of which unit.
        name: Name,
        /// Earlier BundleDeployments of its name that are gone.
        earlier: std::collections::BTreeSet<crate::protocol::Uid>,
    },
    /// A pass of garbage collection ended.
    Collected {
        /// For the next one.
        memory: super::collect::Memory,
        /// When that is due.
        again: std::time::Duration,
    },
    /// The sign of life was written, or not.
    CheckedIn {
        /// One line for people where it was not.
        result: Result<(), String>,
    },
}

/// What brought an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A live read.
    Read,
    /// The answer to a claim or finish.
    Written,
}

/// Where tasks send their answers.
#[derive(Clone, Debug)]
pub struct Outbox(mpsc::Sender<Message>);

impl Outbox {
    /// A queue with its sending side.
    pub fn new() -> (Self, mpsc::Receiver<Message>) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Self(sender), receiver)
    }

    /// Sends; when the loop is gone the process is ending and nobody needs the answer.
    pub async fn send(&self, message: Message) {
        let _ = self.0.send(message).await;
    }

    /// Sends an input without an object.
    pub async fn input(&self, name: &Name, input: Input) {
        self.send(Message::Unit { name: name.clone(), input: Box::new(input) }).await;
    }
}
