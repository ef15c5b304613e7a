//! `schemathesis` asks a coordinator what its OpenAPI document allows and what it forbids, and finds nothing that is not as the
//! document says. `scripts/schemathesis` installs it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "it is shared with tests that need more of it")]
mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use support::{Coordinator, text};

/// Requests that a run makes at least; fewer would show little.
const CASES_MIN: u32 = 300;
/// Of a run, for `schemathesis` to end by itself, and for it to be ended.
const SECONDS: &str = "30";
const SECONDS_MAX: &str = "60";

/// Streams have no end; links and batches are for nodes; the leader of one node stays.
const NOT_ASKED: &str = "^/v1/(events|cluster/(news|batches|link|leader))$|/assignments$";

#[test]
fn schemathesis_finds_nothing() {
    let mut coordinator = Coordinator::prepared();
    let folder = tempfile::tempdir().unwrap();
    let (tokens, token) = tokens(&coordinator, folder.path());
    coordinator.launch_with(&["--tokens", &tokens, "--shard-lease", "200ms", "--shard-check", "100ms"]);

    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openapi");
    let program = here.join("../../../../.tools/schemathesis/bin/schemathesis");
    assert!(program.exists(), "{} is missing: run scripts/schemathesis", program.display());
    let output = Command::new("timeout")
        .arg(SECONDS_MAX)
        .arg(program)
        .arg("--config-file")
        .arg(here.join("schemathesis.toml"))
        .args(["run", &format!("{}/openapi.json", coordinator.url())])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--exclude-path-regex", NOT_ASKED])
        .args(["--max-time", SECONDS, "--seed", "1", "--generation-database", "none"])
        .args(["--request-timeout", "10", "--continue-on-failure", "--no-color"])
        .current_dir(folder.path())
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("PYTHONPATH", &here)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{}:\n{told}", output.status);
    let cases = told.lines().find_map(|line| line.trim().split_once(" generated")?.0.parse::<u32>().ok());
    assert!(cases >= Some(CASES_MIN), "{cases:?}:\n{told}");
    assert!(coordinator.get("/health").unwrap().starts_with("HTTP/1.1 200"), "{told}");
}

/// A file with a token for everything, and the token.
fn tokens(coordinator: &Coordinator, folder: &Path) -> (String, String) {
    let made = coordinator.run(&["token", "new", "--name", "schemathesis", "--role", "admin"]);
    let told = text(&made.stdout);
    let (_, token) = told.lines().find_map(|line| line.strip_prefix("token")?.split_once(": ")).unwrap();
    let entry = &told[told.find("[[token]]").unwrap()..];
    let file = folder.join("tokens.toml");
    std::fs::write(&file, entry).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    (file.to_str().unwrap().to_owned(), token.to_owned())
}
