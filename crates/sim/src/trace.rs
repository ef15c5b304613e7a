//! The hash of everything that happens in a world, which shows that the same seed gives the same world.

use std::fmt;

/// Whether a world computes the hash of its trace. The hash takes a quarter of the time, and only repeated worlds need it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tracing {
    Hashed,
    Off,
}

pub(crate) struct Trace(Option<Box<blake3::Hasher>>);

impl Trace {
    pub(crate) fn new(tracing: Tracing) -> Self {
        Self(match tracing {
            Tracing::Hashed => Some(Box::default()),
            Tracing::Off => None,
        })
    }

    pub(crate) fn add(&mut self, what: fmt::Arguments<'_>) {
        if let Some(hasher) = &mut self.0 {
            fmt::write(&mut Text(hasher), what).expect("a hasher takes every text");
        }
    }

    /// Zeros without a trace.
    pub(crate) fn hash(&self) -> [u8; 32] {
        self.0.as_ref().map_or([0; 32], |hasher| *hasher.finalize().as_bytes())
    }
}

struct Text<'a>(&'a mut blake3::Hasher);

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}
