//! Numbers and choices out of bytes. When the bytes are used up there are only zeros.

/// Takes bytes from the front.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    rest: &'a [u8],
}

impl<'a> Source<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    pub(crate) fn number<const N: usize>(&mut self) -> u64 {
        (0..N).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let drawn = if end <= 256 { u64::from(self.byte()) } else { self.number::<4>() };
        usize::try_from(drawn).unwrap_or(0) % end.max(1)
    }

    pub(crate) fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(bytes.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}
