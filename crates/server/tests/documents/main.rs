//! The commands that the documents show are run as they stand there.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

#[test]
fn the_tour_of_the_readme_goes_as_it_is_told() {
    let output = run(&shell_blocks("README.md"));
    assert_eq!(output.matches("finished\n").count(), 2, "both tasks were followed to their end:\n{output}");
    assert!(
        output.contains(r#"attempt 1 at {"image": "dog.png"}"#),
        "the output survived the kill:\n{output}"
    );
    assert!(output.contains("COMPLETED"), "{output}");
}

/// All `sh` blocks of a document, without those that build the project: `make test` runs this test.
fn shell_blocks(document: &str) -> String {
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let mut script = String::new();
    for block in text.split("```sh\n").skip(1) {
        let block = block.split("```").next().unwrap();
        if !block.starts_with("make ") {
            script.push_str(block);
        }
    }
    assert!(script.lines().count() > 10, "{document} shows commands");
    script
}

/// Runs a script in an empty folder, with the binary on its path and a port of its own.
fn run(script: &str) -> String {
    let folder = TempDir::new().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let binary = Path::new(env!("CARGO_BIN_EXE_orchestrix"));
    let path = std::env::join_paths(
        std::iter::once(binary.parent().unwrap().to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let output = Command::new("timeout")
        .args(["120", "bash", "-euo", "pipefail", "-c", script])
        .current_dir(folder.path())
        .env("PATH", path.unwrap())
        .env("ORCHESTRIX_LISTEN", format!("127.0.0.1:{port}"))
        .env("ORCHESTRIX_URL", format!("http://127.0.0.1:{port}"))
        .env_remove("ORCHESTRIX_TOKEN")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}\n{stdout}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
