//! One target under libFuzzer: `ORCHESTRIX_FUZZ=name fuzz [options of libFuzzer] corpus`. `scripts/fuzz` builds
//! and calls it.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use orchestrix_fuzz::Target;

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    CHOSEN.get_or_init(|| {
        let name = std::env::var("ORCHESTRIX_FUZZ").unwrap_or_default();
        Target::find(&name).expect("ORCHESTRIX_FUZZ names a target of the table")
    })
}

fuzz_target!(|input: &[u8]| chosen().run(input));
