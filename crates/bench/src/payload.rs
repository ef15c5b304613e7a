//! What tasks carry: 200 bytes of JSON that no storage can make smaller.

use std::sync::{Arc, OnceLock};

/// Bytes of a payload, quotation marks included.
pub(crate) const PAYLOAD_BYTES: usize = 200;
/// Letters to cut payloads from. More than a processor keeps close, so that no server profits from repeats.
const POOL_BYTES: usize = 4 << 20;
/// Far enough from the last payload, and no divisor of the pool.
const STRIDE: usize = 7_919;

/// Payloads, one after the other. Cutting one costs a copy, so that the load is not what is measured.
#[derive(Clone, Debug)]
pub(crate) struct Payloads {
    pool: Arc<[u8]>,
    at: usize,
}

impl Payloads {
    /// Different seeds begin at different places.
    pub(crate) fn new(seed: usize) -> Self {
        static POOL: OnceLock<Arc<[u8]>> = OnceLock::new();
        let pool = Arc::clone(POOL.get_or_init(letters));
        Self { at: seed * 1_000_003 % (POOL_BYTES - PAYLOAD_BYTES), pool }
    }

    /// Appends a JSON string of 200 bytes.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) {
        self.at = (self.at + STRIDE) % (POOL_BYTES - PAYLOAD_BYTES);
        out.push(b'"');
        out.extend_from_slice(&self.pool[self.at..self.at + PAYLOAD_BYTES - 2]);
        out.push(b'"');
    }

    pub(crate) fn text(&mut self) -> String {
        let mut bytes = Vec::with_capacity(PAYLOAD_BYTES);
        self.write(&mut bytes);
        String::from_utf8(bytes).expect("a payload is made of letters")
    }
}

fn letters() -> Arc<[u8]> {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    let mut letter = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[(x >> 32) as usize % 52]
    };
    (0..POOL_BYTES).map(|_| letter()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_json_of_200_bytes_and_none_is_like_the_next() {
        let mut payloads = Payloads::new(3);
        let (first, second) = (payloads.text(), payloads.text());
        assert_eq!(first.len(), PAYLOAD_BYTES);
        assert_ne!(first, second);
        assert!(orchestrix_core::Json::parse(&first).is_ok());
    }
}
