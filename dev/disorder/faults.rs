// SPDX-License-Identifier: Apache-2.0
//! What goes wrong, and when: drawn from a seed, so that a run can be repeated.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::harness::proxy::{Mode, Way};

/// One of the two control planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// Where BundleDeployments live.
    Upstream,
    /// Where their objects go.
    Downstream,
}

/// Whom a fault of the network hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// One replica, by its number.
    One(usize),
    /// Every replica, and the controller.
    All,
}

/// One accident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL of a replica, which is started anew a little later.
    Kill {
        /// Which.
        who: usize,
        /// How much later.
        back_in: Duration,
    },
    /// SIGTERM of a replica; SIGKILL after its grace period, as a kubelet would.
    Term {
        /// Which.
        who: usize,
    },
    /// SIGSTOP, and SIGCONT later.
    Freeze {
        /// Which.
        who: usize,
        /// For how long.
        time: Duration,
    },
    /// A fault of the network.
    Link {
        /// In front of which server.
        plane: Plane,
        /// For whom.
        who: Who,
        /// What it does.
        mode: Mode,
        /// For how long.
        time: Duration,
    },
    /// All open connections are reset once.
    Reset {
        /// To which server.
        plane: Plane,
        /// Whose.
        who: Who,
    },
    /// SIGKILL of an API server, which is started anew at once.
    RestartApi {
        /// Which.
        plane: Plane,
    },
    /// An API server's store stands still.
    FreezeEtcd {
        /// Which.
        plane: Plane,
        /// For how long.
        time: Duration,
    },
    /// SIGKILL of the controller, which stays away for a while.
    ControllerAway {
        /// For how long.
        time: Duration,
    },
    /// The wall clock of one replica, or of the controller, jumps.
    ClockStep {
        /// Which; [`Fault::CONTROLLER`] is no replica.
        who: usize,
        /// To how many seconds from the truth.
        seconds: i64,
    },
}

impl fmt::Display for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Plane::Upstream => "upstream",
            Plane::Downstream => "downstream",
        })
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::One(number) => write!(f, "replica-{number}"),
            Who::All => f.write_str("all"),
        }
    }
}

impl Fault {
    /// Replicas are counted from 1.
    pub const CONTROLLER: usize = 0;

    /// What it is, for the table.
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Kill { .. } => "SIGKILL",
            Fault::Term { .. } => "SIGTERM",
            Fault::Freeze { .. } => "SIGSTOP and SIGCONT",
            Fault::Link { mode, .. } => match mode {
                Mode::Pass => "none",
                Mode::Delay(_) => "connections delayed",
                Mode::Cut => "connections cut",
                Mode::HalfOpen => "connections half open",
                Mode::Stall(Way::Up) => "requests held up",
                Mode::Stall(Way::Down) => "answers held up",
                Mode::LoseReplies => "answers lost",
                Mode::Repeat => "answered writes repeated",
            },
            Fault::Reset { .. } => "connections reset",
            Fault::RestartApi { .. } => "API server killed",
            Fault::FreezeEtcd { .. } => "etcd frozen",
            Fault::ControllerAway { .. } => "controller killed and away",
            Fault::ClockStep { .. } => "wall clock stepped",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            Fault::Kill { who, back_in } => {
                write!(f, "{kind} replica-{who}, back in {:.1} s", back_in.as_secs_f64())
            }
            Fault::Term { who } => write!(f, "{kind} replica-{who}"),
            Fault::Freeze { who, time } => write!(f, "{kind} replica-{who}, {:.1} s", time.as_secs_f64()),
            Fault::Link { plane, who, mode, time } => {
                write!(f, "{kind}, {plane}, {who}, {:.1} s", time.as_secs_f64())?;
                if let Mode::Delay(by) = mode {
                    write!(f, ", by {} ms", by.as_millis())?;
                }
                Ok(())
            }
            Fault::Reset { plane, who } => write!(f, "{kind}, {plane}, {who}"),
            Fault::RestartApi { plane } => write!(f, "{kind}, {plane}"),
            Fault::FreezeEtcd { plane, time } => write!(f, "{kind}, {plane}, {:.1} s", time.as_secs_f64()),
            Fault::ControllerAway { time } => write!(f, "{kind}, {:.1} s", time.as_secs_f64()),
            Fault::ClockStep { who: Fault::CONTROLLER, seconds } => {
                write!(f, "{kind}, controller, to {seconds:+} s")
            }
            Fault::ClockStep { who, seconds } => write!(f, "{kind}, replica-{who}, to {seconds:+} s"),
        }
    }
}

/// An endless sequence of accidents and the pauses before them.
pub struct Faults {
    random: StdRng,
    replicas: usize,
    ttl: Duration,
    gap: Duration,
}

impl Faults {
    /// Drawn from `seed`, for `replicas` replicas with sessions of `ttl`, on average `gap` apart.
    pub fn new(seed: u64, replicas: usize, ttl: Duration, gap: Duration) -> Faults {
        Faults { random: StdRng::seed_from_u64(seed), replicas, ttl, gap }
    }

    /// The next one, after a pause.
    pub fn draw(&mut self) -> (Duration, Fault) {
        let pause = self.gap.mul_f64(self.random.random_range(0.3..1.7));
        (pause, self.fault())
    }

    fn fault(&mut self) -> Fault {
        let who = self.random.random_range(1..=self.replicas);
        let plane = if self.random.random_bool(0.5) { Plane::Upstream } else { Plane::Downstream };
        match self.random.random_range(0..100) {
            0..17 => Fault::Kill { who, back_in: self.between(0.1, 2.5) },
            17..24 => Fault::Term { who },
            24..36 => Fault::Freeze { who, time: self.ttl.mul_f64(self.random.random_range(0.5..3.0)) },
            36..76 => self.link(plane, who),
            76..84 => Fault::Reset { plane, who: self.whom(who) },
            84..88 => Fault::RestartApi { plane },
            88..92 => Fault::FreezeEtcd { plane, time: self.between(0.5, 5.0) },
            92..96 => Fault::ControllerAway { time: self.between(2.0, 20.0) },
            96.. => Fault::ClockStep {
                who: self.random.random_range(Fault::CONTROLLER..=self.replicas),
                seconds: self.random.random_range(-7200..7200),
            },
            _ => unreachable!("drawn from 0 to 99"),
        }
    }

    fn link(&mut self, plane: Plane, who: usize) -> Fault {
        // Longer than TTL, shorter than TTL and a request's limit: what is held up longer than that is outside what
        // the agents promise (docs/limits.md).
        let time = self.between(0.5, (self.ttl * 5 / 2).min(self.ttl + Duration::from_secs(8)).as_secs_f64());
        let mode = match self.random.random_range(0..9) {
            0 => Mode::Delay(self.between(0.01, 0.4)),
            1 => Mode::Cut,
            2 => Mode::HalfOpen,
            3 => Mode::Stall(Way::Up),
            4 => Mode::Stall(Way::Down),
            5 | 6 => Mode::Repeat,
            _ => Mode::LoseReplies,
        };
        Fault::Link { plane, who: self.whom(who), mode, time }
    }

    fn whom(&mut self, who: usize) -> Who {
        if self.random.random_bool(0.2) { Who::All } else { Who::One(who) }
    }

    fn between(&mut self, from: f64, to: f64) -> Duration {
        Duration::from_secs_f64(self.random.random_range(from..to))
    }
}
