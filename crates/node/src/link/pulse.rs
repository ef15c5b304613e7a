//! Whether the other end is alive: after a silence it is asked for a sign of life, and has a time for that.

use std::time::Duration;

use crate::link::frame::Broken;
use crate::link::{HELLO_WITHIN, PING_AFTER, PONG_WITHIN};

#[derive(Debug)]
pub(super) struct Pulse {
    heard_at: Duration,
    /// Since when a sign of life is awaited.
    asked_at: Option<Duration>,
    has_met: bool,
}

impl Pulse {
    pub(super) fn new(now: Duration) -> Self {
        Self { heard_at: now, asked_at: None, has_met: false }
    }

    pub(super) fn met(&mut self) {
        self.has_met = true;
    }

    pub(super) fn heard(&mut self, now: Duration) {
        self.heard_at = now;
        self.asked_at = None;
    }

    /// Whether to ask for a sign of life now.
    ///
    /// # Errors
    /// When there was none in time. If this process was frozen and sent no `ping`, it sends one first.
    pub(super) fn tick(&mut self, now: Duration) -> Result<bool, Broken> {
        if self.next_due() > now {
            return Ok(false);
        }
        if !self.has_met || self.asked_at.is_some() {
            return Err(Broken::Silent);
        }
        self.asked_at = Some(now);
        Ok(true)
    }

    pub(super) fn next_due(&self) -> Duration {
        match self.asked_at {
            _ if !self.has_met => self.heard_at + HELLO_WITHIN,
            Some(at) => at + PONG_WITHIN,
            None => self.heard_at + PING_AFTER,
        }
    }
}
