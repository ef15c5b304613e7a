//! A server for all tests of a program. Nothing that is kept for the whole of a program is ever dropped, so the server
//! is watched by a process that ends it, and removes its folder, when the program has ended, however it did.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::eventually;

/// Ends when its standard input does: then the program is gone. `$0` is the folder, the rest is the server.
const WATCH: &str = r#"
"$@" </dev/null >"$0/log" 2>&1 &
server=$!
echo "$server" >"$0/pid"
cat
kill -9 "$server"
wait "$server"
rm -rf "$0"
"#;

/// A server that ends after the last test.
pub struct Lasting {
    folder: PathBuf,
    /// Has the other end of what the watcher reads.
    _watcher: Child,
}

impl Lasting {
    /// Starts a server and waits until it is ready.
    pub fn start(command: impl FnOnce(&Path) -> Command, ready: impl Fn() -> bool) -> Self {
        let folder = tempfile::tempdir().unwrap().keep();
        let server = command(&folder);
        let mut watcher = Command::new("sh");
        watcher.arg("-c").arg(WATCH).arg(&folder).arg(server.get_program()).args(server.get_args());
        watcher.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let watcher = watcher.spawn().unwrap();
        let lasting = Self { folder, _watcher: watcher };
        let what = format!("{} is ready", server.get_program().to_string_lossy());
        eventually(&what, || {
            let log = lasting.log();
            assert!(!log.contains(": not found"), "{log}; `make test` installs what the tests need");
            assert!(!lasting.has_ended(), "{} ended: {log}", server.get_program().display());
            ready().then_some(())
        });
        lasting
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the server is a process that only its watcher still knows.
    fn has_ended(&self) -> bool {
        let pid = std::fs::read_to_string(self.folder.join("pid")).unwrap_or_default();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.contains(") Z ")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}
