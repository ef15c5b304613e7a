//! Small changes of inputs, drawn from a seed: what the tests try beside the corpus.

/// A sequence of numbers that only its seed decides (xorshift64*).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`; 0 when there is none.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.draw() >> 33).unwrap_or(0) % end.max(1)
    }
}

/// Bytes that decoders treat in a way of their own.
const TELLING: &[u8] = b"\0\x01\x7f\x80\xff\"\\{}[]:,.-+%&=/ \r\n0919eE";

/// Changes an input in one to four places; `other` lends some of its bytes.
pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.below(4) {
        let at = rng.below(input.len() + 1);
        match rng.below(7) {
            0 if at < input.len() => input[at] ^= 1 << rng.below(8),
            1 if at < input.len() => input[at] = TELLING[rng.below(TELLING.len())],
            2 => input.insert(at, TELLING[rng.below(TELLING.len())]),
            3 if at < input.len() => drop(input.drain(at..(at + 1 + rng.below(8)).min(input.len()))),
            4 => input.truncate(at),
            5 => {
                let from = rng.below(other.len() + 1);
                let some = &other[from..(from + rng.below(32)).min(other.len())];
                drop(input.splice(at..at, some.iter().copied()));
            }
            _ => {
                let number = rng.draw() >> rng.below(64);
                let number = number.to_le_bytes();
                let room = input.len() - at;
                let width = [1, 2, 4, 8][rng.below(4)].min(room);
                input[at..at + width].copy_from_slice(&number[..width]);
            }
        }
    }
}
