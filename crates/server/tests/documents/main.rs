//! The commands that the documents show are run as they stand there.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod seeds;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

#[test]
fn the_tour_of_the_readme_runs() {
    let output = run(&shell_blocks("README.md"));
    assert_eq!(output.matches("finished\n").count(), 2, "both tasks were followed to their end:\n{output}");
    assert!(
        output.contains(r#"attempt 1 at {"image": "dog.png"}"#),
        "the output survived the kill:\n{output}"
    );
    assert!(output.contains("COMPLETED"), "{output}");
    assert!(output.contains("sending to alan@example.org under token"), "Python worked on a task:\n{output}");
    assert_eq!(output.matches("COMPLETED").count(), 3, "so did curl:\n{output}");
}

#[test]
fn the_rust_of_the_readme_is_an_example_that_runs() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let readme = read("README.md");
    let (_, rust) = readme.split_once("```rust\n").unwrap();
    let (rust, _) = rust.split_once("```").unwrap();
    assert!(read("crates/client/examples/quickstart.rs").contains(rust), "{rust}");
}

#[test]
fn the_tour_of_several_nodes_runs() {
    // The page has the ports 7400 to 7403; here they are others, which are free.
    let free = |tens: &u16| (0..4).all(|n| TcpListener::bind(("127.0.0.1", tens * 10 + n)).is_ok());
    let tens = (2_000..3_200).find(free).unwrap();
    let output = run(&shell_blocks("docs/cluster.md").replace("740", &tens.to_string()));
    assert_eq!(output.matches("task ").count(), 2, "the task is seen before and after the kill:\n{output}");
    assert_eq!(output.matches("WAITING").count(), 2, "{output}");
    assert!(output.contains("DEAD") || output.contains("leader"), "{output}");
}

#[test]
fn the_tour_of_shards_runs() {
    let output = run(&shell_blocks("docs/shards.md"));
    for line in ["0  AAAABBBCCC", "0  AAAABBBABB"] {
        assert!(output.contains(line), "{line} is not in\n{output}");
    }
}

#[test]
fn every_variable_in_the_compose_file_is_a_setting() {
    let text = std::fs::read_to_string(root().join("compose.yaml")).unwrap();
    let variables: Vec<&str> =
        text.split_whitespace().filter_map(|word| word.strip_prefix("ORCHESTRIX_")).collect();
    assert!(variables.len() > 5, "{variables:?}");
    for variable in variables {
        let name = variable.trim_end_matches(':').to_lowercase();
        assert!(orchestrix_server::config::ServeArgs::NAMES.contains(&name.as_str()), "{name}");
    }
}

/// Where the sources of a crate have a word, as `file: line`.
fn lines_with(word: &str, folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(lines_with(word, &path));
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("tests.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().filter(|line| line.contains(word));
            found.extend(lines.map(|line| format!("{}: {}", path.display(), line.trim())));
        }
    }
    found
}

/// One option, one metric and one engine stand for all others.
#[test]
fn the_recipes_name_all_lists() {
    let sources = |name: &str| root().join("crates").join(name).join("src");
    let everywhere = |word| -> Vec<String> {
        ["core", "engine", "leadership", "node", "server"]
            .iter()
            .flat_map(|it| lines_with(word, &sources(it)))
            .collect()
    };
    let option = everywhere("keys_max");
    assert!(option.len() == 2 && option.iter().all(|line| line.contains("server/src/config")), "{option:#?}");
    let metric = everywhere("services_expired");
    let in_file = |file: &str| metric.iter().filter(|line| line.contains(file)).count();
    assert_eq!((in_file("stats.rs"), in_file("metrics.rs"), metric.len()), (1, 2, 4), "{metric:#?}");
    for user in ["leadership", "node", "server"] {
        let engine = lines_with("S3Place", &sources(user));
        assert!(engine.iter().all(|line| line.contains("server/src/engine.rs")), "{engine:#?}");
    }
    assert_eq!(lines_with("Scheme::S3", &sources("server")).len(), 2);
}

#[test]
fn names_of_tests_are_at_most_sixty_characters() {
    let mut names = 0;
    for path in rust_files() {
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines() {
            let Some((_, rest)) = line.split_once("fn ") else { continue };
            let name = rest.split(['(', '<']).next().unwrap();
            assert!(name.len() <= 60, "{}: `{name}` has {} characters", path.display(), name.len());
            names += 1;
        }
    }
    assert!(names > 5_000, "only {names} functions were seen");
}

/// What the containers would run, with the settings that they would have; only places are others.
#[test]
fn the_compose_file_makes_a_cluster() {
    let text = std::fs::read_to_string(root().join("compose.yaml")).unwrap();
    let [redis, ports @ ..]: [u16; 4] = std::array::from_fn(|_| orchestrix_testbed::free_port());
    let (common, services) = text.split_once("\nservices:").unwrap();
    let server =
        services.lines().find_map(|line| line.trim().strip_prefix("command: [redis-server,")).unwrap();
    let server = server.trim_end_matches(']').replace(',', " ");
    let secret = |name: &str| {
        let (_, rest) = services.split_once(&format!("\n  {name}:\n    file: ./")).unwrap();
        rest.lines().next().unwrap().to_owned()
    };
    let mut script = format!(
        "trap 'cat log-* >&2; kill $(jobs -p); wait' EXIT
         for role in admin node; do orchestrix token new --name $role --role $role > $role; done
         sed -sn '/^\\[\\[/,$p' admin node > {tokens}
         sed -n 's/^token.*: //p' node > {node_token}
         chmod 600 {tokens} {node_token}
         mkdir redis
         redis-server --bind 127.0.0.1 --port {redis} --dir redis {server} > redis/log &
         until redis-cli -p {redis} ping > /dev/null 2>&1; do sleep 0.1; done
         export ORCHESTRIX_TOKEN=$(sed -n 's/^token.*: //p' admin)\n",
        tokens = secret("tokens"),
        node_token = secret("node-token"),
    );
    for (n, port) in (1..).zip(ports) {
        let (_, node) = services.split_once(&format!("\n  node-{n}:")).unwrap();
        let node = node.split("ports:").next().unwrap();
        let set = common.lines().chain(node.lines()).filter(|line| line.trim().starts_with("ORCHESTRIX_"));
        let set: Vec<String> = set.map(|line| line.trim().replacen(": ", "=", 1)).collect();
        let places = [
            ("redis:6379", format!("127.0.0.1:{redis}")),
            ("0.0.0.0:3000", format!("127.0.0.1:{port}")),
            (&format!("node-{n}:3000"), format!("127.0.0.1:{port}")),
            ("/data", format!("data-{n}")),
            ("/run/secrets/tokens", secret("tokens")),
            ("/run/secrets/node-token", secret("node-token")),
        ];
        let set = places.iter().fold(set.join(" "), |set, (from, to)| {
            assert!(set.contains(from), "node-{n} has no {from}: {set}");
            set.replace(from, to)
        });
        script.push_str(&format!("env -u ORCHESTRIX_TOKEN {set} orchestrix serve > log-{n} 2>&1 &\n"));
    }
    script.push_str(&format!(
        "export ORCHESTRIX_URL=http://127.0.0.1:{}
         until [ \"$(orchestrix nodes 2> /dev/null | grep -c ACTIVE)\" = 3 ]; do sleep 0.1; done
         id=$(orchestrix submit mail '{{}}' --json | sed 's/[^0-9]*\\([0-9]*\\).*/\\1/')
         ORCHESTRIX_URL=http://127.0.0.1:{} orchestrix task $id
         orchestrix nodes\n",
        ports[1], ports[2]
    ));
    let output = run(&script);
    assert!(output.contains("WAITING"), "{output}");
    for n in 1..=3 {
        assert!(output.contains(&format!("node-{n}  ")), "{output}");
    }
    assert_eq!(output.matches("follower").count(), 2, "{output}");
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
    let port = orchestrix_testbed::free_port();
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

/// All Rust files of the workspace.
fn rust_files() -> Vec<PathBuf> {
    let mut folders = vec![root().join("crates")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
